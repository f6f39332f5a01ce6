"""The trees of runs in Redis, and what each run knows of its queries.

One script commits a node whole: pairs, result, knowledge, counters, event. Committing it again changes nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import to_json
from redis.asyncio import Redis

from aeenc import errors
from aeenc.oracle import Candidate
from aeenc.trees import EVERYTHING, Accessible
from aeenc.values import Answer, Collect
from services.sampler.acs.algorithm import (
    ADDED,
    ROOT,
    AcceptedPremise,
    Growth,
    Known,
    KnownPair,
    Node,
    NodeAnswer,
    NodeRound,
    Outcome,
    Result,
    Tree,
    accepted,
    cut_nodes,
    explains,
)
from services.sampler.records.keys import RunKeys
from services.sampler.records.run_store import ADD_PAIRS, CHUNK, EMIT
from services.sampler.records.runs import FORMAT_VERSION, NO_ROOT, Hypothesis, Pair, Run
from services.store.formats import RESTORE, check_format, damage_is_data_loss, made_of
from services.store.life_cycles import digest, now
from services.store.redis import raising_unavailable, run_script

SHOWN = 5  # hypotheses in the message about an unknown one
_ANSWER = TypeAdapter(Answer)

# OK: stored. DONE: it was stored before. LOST: another sampler has the run. STOPPED: the run was cancelled.
Written = Literal["OK", "DONE", "LOST", "STOPPED"]
Amended = Mapping[str, KnownPair]  # the last amended pairs of a query, by premise

# A worker may write only while the run is running and it holds the run's lease. It cannot take back a lease that has
# lapsed once another has worked on the run.
_FENCE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 'LOST' end
if redis.call('HGET', KEYS[1], 'state') ~= 'RUNNING' then return 'STOPPED' end
"""

# KEYS: run, lease, tree, pairs, events, answers, amended
# ARGV: owner, now, field of the tree, its value, whether that completes the node, query key, answers, verdicts on what
#       was not asked, judgements, failed, how many more nodes are pending, query, the tree's depth if it goes back,
#       then pairs
_COMMIT = (
    ADD_PAIRS
    + _FENCE
    + """
if redis.call('HSETNX', KEYS[3], ARGV[3], ARGV[4]) == 0 then return 'DONE' end
if ARGV[13] ~= '' then redis.call('HSET', KEYS[3], 'depth', ARGV[13]) end
if ARGV[7] ~= '' then redis.call('HSET', KEYS[6], ARGV[6], ARGV[7]) end
add_pairs(KEYS[1], KEYS[4], KEYS[7], ARGV, 14, cjson.decode(redis.call('HGET', KEYS[7], ARGV[12]) or '{}'))
redis.call('HINCRBY', KEYS[1], 'skipped', ARGV[8])
redis.call('HINCRBY', KEYS[1], 'judgements', ARGV[9])
redis.call('HINCRBY', KEYS[1], 'nodes_judged', ARGV[5] - ARGV[10])
redis.call('HINCRBY', KEYS[1], 'nodes_failed', ARGV[10])
redis.call('HINCRBY', KEYS[1], 'nodes_pending', ARGV[11])
emit(KEYS[1], KEYS[5], ARGV[2])
return 'OK'
"""
)

# Opens a tree's next level or changes the result of a judged node, with the new nodes; or closes a tree that has no
# level left. One that is closed and grows is open again. What comes late, after another write has moved the tree,
# changes nothing.
# KEYS: run, lease, tree, events, open
# ARGV: owner, now, tree index, the tree's depth until now or '' (any), field of the tree that changes, its value, the
#       tree's depth from now on or '' (it is closed), how many more nodes are pending, then ordinal and node by turns
_GROW = (
    EMIT
    + _FENCE
    + """
if ARGV[4] ~= '' and (redis.call('HGET', KEYS[3], 'depth') or '0') ~= ARGV[4] then return 'DONE' end
if ARGV[7] == '' then
  if redis.call('ZREM', KEYS[5], ARGV[3]) == 0 then return 'DONE' end
  redis.call('HINCRBY', KEYS[1], 'trees_done', 1)
else
  if redis.call('HGET', KEYS[3], ARGV[5]) == ARGV[6] then return 'DONE' end
  redis.call('HSET', KEYS[3], ARGV[5], ARGV[6], 'depth', ARGV[7])
  for i = 9, #ARGV, 2 do redis.call('HSET', KEYS[3], 'n:' .. ARGV[i], ARGV[i + 1]) end
  redis.call('HINCRBY', KEYS[1], 'nodes_pending', ARGV[8])
  if ARGV[5] == 'depth' then return 'OK' end
  if redis.call('ZADD', KEYS[5], ARGV[3], ARGV[3]) == 1 then redis.call('HINCRBY', KEYS[1], 'trees_done', -1) end
end
emit(KEYS[1], KEYS[4], ARGV[2])
return 'OK'
"""
)


class NodeCommit(NamedTuple):
    """A judged round of a node, with what it adds to a run. The `growth` of its tree completes the node."""

    round: NodeRound
    outcome: Outcome
    answer: NodeAnswer | None = None
    growth: Growth | None = None


@raising_unavailable("trees")
class NodeStore:
    """Trees of all runs of one namespace. Raises Unavailable when Redis is away."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = keys

    async def open_trees(self, run_id: str, after: int, limit: int) -> list[Tree]:
        """The first unfinished trees with an index above `after`, in order."""
        indexes = await self._redis.zrangebyscore(self._keys.open(run_id), f"({after}", "+inf", 0, limit)
        return await self.trees(run_id, [int(index) for index in indexes])

    async def trees(self, run_id: str, indexes: Sequence[int]) -> list[Tree]:
        """Trees by index."""
        pipe = self._redis.pipeline(transaction=False)
        for index in indexes:
            pipe.lindex(self._keys.hypotheses(run_id), index)
            pipe.hgetall(self._keys.tree(run_id, index))
        rows = await pipe.execute()
        found = zip(indexes, rows[::2], rows[1::2], strict=True)
        with damage_is_data_loss(f"a tree of run {run_id}", RESTORE):
            return [_tree(index, row, record) for index, row, record in found if row]  # none of a run that was deleted

    async def tree_of(self, run_id: str, hypothesis_id: str) -> Tree:
        """The tree of a hypothesis. Raises NotFound."""
        place = await self._redis.hget(self._keys.places(run_id), hypothesis_id)
        trees = await self.trees(run_id, [int(place)]) if place else []
        if not trees:
            some = await self._redis.lrange(self._keys.hypotheses(run_id), 0, SHOWN)
            count = await self._redis.llen(self._keys.hypotheses(run_id))
            with damage_is_data_loss(f"a hypothesis of run {run_id}", RESTORE):
                shown = ", ".join(_row(row, 1)[0] for row in some[:SHOWN]) + (", …" if len(some) > SHOWN else "")
            raise errors.NotFound(f"run {run_id} has no hypothesis {hypothesis_id!r}; it has {count:,}: {shown}")
        return trees[0]

    async def hypotheses(self, run_id: str, node_ids: Sequence[str]) -> list[Hypothesis]:
        """The hypothesis at the root of each node's tree; an empty one for no node or of a run that was deleted."""
        pipe = self._redis.pipeline(transaction=False)
        for node_id in node_ids:
            pipe.lindex(self._keys.hypotheses(run_id), node_id.partition("-")[0] or sys.maxsize)
        rows = await pipe.execute()
        with damage_is_data_loss(f"a hypothesis of run {run_id}", RESTORE):
            return [Hypothesis(*_row(row, 4)) if row else NO_ROOT for row in rows]

    async def accessible(self, run_id: str, node_id: str) -> Accessible:
        """What may explain a node; everything, where the run was deleted meanwhile."""
        index, ordinal = map(int, node_id.split("-"))
        trees = await self.trees(run_id, [index])
        return trees[0].accessible(trees[0].nodes[ordinal]) if trees else EVERYTHING

    async def is_finished(self, run_id: str, tree: int) -> bool:
        """Whether no node of a tree is left to judge."""
        return await self._redis.zscore(self._keys.open(run_id), str(tree)) is None

    async def answers(self, run_id: str, queries: Sequence[str]) -> list[Known]:
        """What the run knows of each query."""
        return (await self.current(run_id, queries))[1] if queries else []

    async def current(self, run_id: str, queries: Sequence[str]) -> tuple[str, list[Known]]:
        """The encoder version that the run follows now (empty: that it began with), and what it knows of each query."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.hget(self._keys.record(run_id), "current_version")
        pipe.hmget(self._keys.answers(run_id), [digest(query) for query in queries])
        pipe.hmget(self._keys.amended(run_id), queries)
        version, rows, amended = await pipe.execute()
        with damage_is_data_loss(f"an answer of run {run_id}", RESTORE):
            return version or "", [_known(run_id, *both) for both in zip(rows, amended, strict=True)]

    async def amended(self, run_id: str, queries: Sequence[str]) -> list[Amended]:
        """The last amended pair of each premise of each query."""
        if not queries:
            return []
        rows = await self._redis.hmget(self._keys.amended(run_id), queries)
        with damage_is_data_loss(f"an answer of run {run_id}", RESTORE):
            return [_amended(row) for row in rows]

    async def commit(self, run: Run, owner: str, nodes: Sequence[NodeCommit]) -> list[Written]:
        """Commits nodes, each on its own, in one round trip."""
        own = self._keys
        further = [part(run.id) for part in (own.pairs, own.events, own.answers, own.amended)]
        calls = [
            (
                [*self._tree_keys(run.id, node.round.tree), *further],
                [owner, now(), *_commit_arguments(run, node)],
            )
            for node in nodes
        ]
        return await self._run(_COMMIT, calls)

    async def advance(self, run_id: str, owner: str, levels: Sequence[tuple[Tree, Sequence[Node]]]) -> list[Written]:
        """Opens the next level of trees, each on its own, in one round trip. One without a further level is finished.

        One may have deeper nodes, and none in its next level.
        """
        calls = []
        for tree, nodes in levels:
            depth = tree.depth + 1
            of_level = [tree.depth, "depth", depth, depth if nodes or tree.deeper else "", len(nodes)]
            calls.append((tree, [*of_level, *_by_ordinal(nodes)]))
        return await self._change(run_id, owner, calls)

    async def grow(self, run_id: str, owner: str, tree: Tree, growth: Growth) -> list[Written]:
        """Stores what explains a judged node now, with the new nodes below. A finished tree is open again."""
        pending = len(growth.nodes) + growth.reopened
        of_node = ["", f"r:{growth.ordinal}", _result_json(growth.result), growth.depth, pending]
        return await self._change(run_id, owner, [(tree, [*of_node, *_by_ordinal(growth.nodes)])])

    async def _change(self, run_id: str, owner: str, changes: Sequence[tuple[Tree, list[Any]]]) -> list[Written]:
        of_run = [self._keys.events(run_id), self._keys.open(run_id)]
        calls = [
            ([*self._tree_keys(run_id, tree), *of_run], [owner, now(), tree.index, *change]) for tree, change in changes
        ]
        return await self._run(_GROW, calls)

    async def keys_of(self, run_id: str) -> AsyncIterator[list[str]]:
        """The keys of a run's trees and of what it knows, in parts."""
        own = self._keys
        trees = await self._redis.llen(own.hypotheses(run_id))
        for start in range(0, trees, CHUNK):
            yield [own.tree(run_id, index) for index in range(start, min(start + CHUNK, trees))]
        yield [part(run_id) for part in (own.hypotheses, own.places, own.open, own.answers, own.asked, own.suspects)]

    def _tree_keys(self, run_id: str, tree: Tree) -> list[str]:
        return [self._keys.record(run_id), self._keys.lease(run_id), self._keys.tree(run_id, tree.index)]

    async def _run(self, script: str, calls: Sequence[tuple[list[str], list[Any]]]) -> list[Written]:
        # Each script is whole by itself. In a transaction all share one wait for the disk; else Redis waits for it
        # after each 16 KiB that it reads.
        pipe = self._redis.pipeline()
        for keys, arguments in calls:
            await run_script(pipe, script, keys, arguments)
        return list(await pipe.execute())


def explaining(tree: Tree, node: Node, amended: Amended) -> tuple[AcceptedPremise, ...]:
    """What explains a judged node by the last amendments of its query: best rank first, then what those add."""
    result, above = tree.results[node.ordinal], {node.text, *tree.path(node)}
    may = {*(tree.within.only_ids or ()), *(one.id for one in result.accepted)}
    new = {
        pair.premise.text: accepted(pair.premise, pair.leaf)
        for pair in amended.values()
        if pair.explains and pair.premise.text not in above and (not tree.within.only_ids or pair.premise.id in may)
    }
    held = {one.text: one for one in result.accepted if one.id not in amended or one.text in new}
    return tuple({**held, **new}.values())


def _pairs(run: Run, commit: NodeCommit, answer: NodeAnswer) -> Iterator[Pair]:
    node_round, judged_at = commit.round, now()
    for premise in commit.outcome.judged:
        verdict = answer.verdicts[premise.id]
        if run.config.collect is Collect.POSITIVES_ONLY and explains(verdict) is False:
            continue
        yield run.pair(
            node_round.node.text,
            premise,
            verdict,
            node_id=node_round.node_id,
            annotator=verdict.annotator or answer.annotator or run.config.oracle,
            note=answer.note,
            amended=premise.id in node_round.known.pairs and bool(explains(verdict)),  # added, though refused before
            version=node_round.version,
            judged_at=judged_at,
        )


def _commit_arguments(run: Run, commit: NodeCommit) -> list[Any]:
    node_round, _, answer, growth = commit
    tree, node = node_round.tree, node_round.node
    return [
        f"r:{node.ordinal}" if growth else f"p:{node.ordinal}:{node_round.part}",
        _result_json(growth.result) if growth else json.dumps([FORMAT_VERSION]),
        int(growth is not None),
        digest(node.text),
        _known_json(commit.outcome.known) if answer else "",
        answer.unknown if answer else 0,
        len(node_round.asked) if answer else 0,
        int(growth is not None and growth.result.failed),
        growth.reopened - (node.ordinal not in tree.cut) if growth else 0,
        node.text,
        growth.depth if growth and growth.depth < tree.depth else "",
        *(pair.to_json() for pair in (_pairs(run, commit, answer) if answer else ())),
    ]


def _by_ordinal(nodes: Iterable[Node]) -> list[Any]:
    return [text for node in nodes for text in (node.ordinal, json.dumps([FORMAT_VERSION, *_values_of(node)[1:]]))]


def _result_json(result: Result) -> str:
    accepted = [_values_of(premise) for premise in result.accepted]
    return to_json([FORMAT_VERSION, result.failed, accepted, result.version]).decode()


def _values_of(record: Node | AcceptedPremise) -> list[Any]:
    return [*vars(record).values()]  # plain values: `astuple` copies each, a tenth of all that a node costs


def _known_json(known: Known) -> str:
    vectors = list(dict.fromkeys(pair.vector for pair in known.pairs.values()))
    pairs = {}
    for name, pair in known.pairs.items():
        premise = pair.premise
        found = [premise.text, premise.rank, premise.score, vectors.index(pair.vector)]
        pairs[name] = [pair.explains, pair.leaf, *found]
    written = [(one.text, one.author) for one in known.written]
    said = [_ANSWER.dump_python(one, mode="json", exclude_defaults=True) for one in known.statements]
    stored = {"pairs": pairs, "vectors": vectors, "written": written, "within": known.within, "statements": said}
    return to_json({"format_version": FORMAT_VERSION, **stored}).decode()


def _known(run_id: str, row: str | None, amended: str | None) -> Known:
    """What is known of a query, after people have changed their minds."""
    if not row and not amended:
        return Known()
    stored: dict[str, Any] = json.loads(row) if row else {"format_version": FORMAT_VERSION, "pairs": {}}
    check_format(stored, FORMAT_VERSION, f"an answer of run {run_id}")
    pairs = {
        name: KnownPair(does, leaf, Candidate(name, *premise), stored["vectors"][vector])
        for name, (does, leaf, *premise, vector) in stored["pairs"].items()
    }
    for name, pair in _amended(amended).items():
        pairs[name] = replace(pairs.get(name, pair), explains=pair.explains, leaf=pair.leaf)
    written = (AcceptedPremise("", row[0], ADDED, leaf=False, author=row[1]) for row in stored.get("written", ()))
    return Known(
        pairs,
        tuple(written),
        tuple(made_of(Answer, one) for one in stored.get("statements", ())),
        stored.get("within", ""),
    )


def _amended(row: str | None) -> Amended:
    return {name: Pair.from_json(text, 0).known for name, text in json.loads(row or "{}").items()}


def _row(text: str, values: int) -> list[Any]:
    """The first values of a row; a later minor release may add others behind them. Raises NewerFormat."""
    row: list[Any] = json.loads(text)
    check_format({"format_version": row[0]}, FORMAT_VERSION, "a node of a tree")
    return row[1 : values + 1]


def _tree(index: int, hypothesis: str, record: dict[str, str]) -> Tree:
    hypothesis_id, text, question, answer, before_id, only_ids = _row(hypothesis, 6)
    nodes = [Node(ROOT, text)]
    results: dict[int, Result] = {}
    for name, value in record.items():
        kind, _, ordinal = name.partition(":")
        if kind == "n":
            nodes.append(Node(int(ordinal), *_row(value, 5)))
        elif kind == "r":
            failed, accepted, *further = _row(value, 3)
            results[int(ordinal)] = Result(tuple(AcceptedPremise(*row[:5]) for row in accepted), failed, *further)
    nodes.sort(key=lambda node: node.ordinal)
    depth, within = int(record.get("depth", 0)), Accessible(before_id, tuple(only_ids) or None)
    return Tree(index, hypothesis_id, nodes, results, depth, question, answer, cut_nodes(nodes, results), within)
