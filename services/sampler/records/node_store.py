"""The trees of runs in Redis, and what each run knows of its queries.

One script commits a node whole: pairs, result, knowledge, counters, event. Committing it again changes nothing.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal, Self

from redis.asyncio import Redis

from aeenc import errors
from aeenc.oracle import Candidate
from aeenc.values import Answer, NodeVerdict, PremiseSet
from services.sampler.acs.algorithm import (
    ADDED,
    ROOT,
    AcceptedPremise,
    Growth,
    Known,
    Node,
    Outcome,
    PairState,
    Result,
    Tree,
    cut_nodes,
)
from services.sampler.acs.nodes import NodeAnswer, NodeRound
from services.sampler.records.keys import RunKeys
from services.sampler.records.run_store import CHUNK, EMIT, NOTE_AMENDED
from services.sampler.records.runs import FORMAT_VERSION, Hypothesis, Pair, Run
from services.store.formats import check_format
from services.store.life_cycles import digest, now
from services.store.redis import Script, unavailable_if_down

PLACED_RUNS = 8  # whose hypotheses' places are kept
SHOWN = 5  # hypotheses in the message about an unknown one
_SAID = ("annotator", "note", "written", "inference", "intermediates")  # of an answer, beside verdicts

# OK: stored. DONE: it was stored before. LOST: another sampler has the run. STOPPED: the run was cancelled.
Written = Literal["OK", "DONE", "LOST", "STOPPED"]
Amended = Mapping[str, Pair]  # the last amended pairs of a query, by premise

# A worker may write only while it holds the run's lease and the run is running.
_FENCE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 'LOST' end
if redis.call('HGET', KEYS[1], 'state') ~= 'RUNNING' then return 'STOPPED' end
"""

# A pair that people have amended is not recorded again: an earlier answer does not follow a later one in the log. One
# that is an amendment itself is noted as the last.
# KEYS: run, lease, tree, pairs, events, answers, amended
# ARGV: owner, now, field of the tree, its value, whether that completes the node, query key, answers, positives,
#       negatives, skipped, judgements, failed, how many more nodes are pending, query, the tree's depth if it goes
#       back, whether pairs amend others, then pairs
_COMMIT = (
    EMIT
    + NOTE_AMENDED
    + _FENCE
    + """
if redis.call('HSETNX', KEYS[3], ARGV[3], ARGV[4]) == 0 then return 'DONE' end
if ARGV[15] ~= '' then redis.call('HSET', KEYS[3], 'depth', ARGV[15]) end
if ARGV[7] ~= '' then redis.call('HSET', KEYS[6], ARGV[6], ARGV[7]) end
local amended, left_out = redis.call('HGET', KEYS[7], ARGV[14]), {0, 0, 0, 0}
amended = amended and cjson.decode(amended)
for i = 17, #ARGV do
  local pair = (amended or ARGV[16] == '1') and cjson.decode(ARGV[i])
  if pair and pair.amended then note_amended(KEYS[7], pair, ARGV[i]) end
  if amended and not pair.amended and amended[pair.premise_id] then
    local place = ({POSITIVE = 1, NEGATIVE = 2, SKIPPED = 3})[pair.sign]
    left_out[place] = left_out[place] + 1
  else
    local seq = redis.call('HINCRBY', KEYS[1], 'pair_seq', 1)
    redis.call('XADD', KEYS[4], seq .. '-0', 'pair', ARGV[i])
  end
end
redis.call('HINCRBY', KEYS[1], 'nodes_judged', ARGV[5] - ARGV[12])
redis.call('HINCRBY', KEYS[1], 'nodes_failed', ARGV[12])
redis.call('HINCRBY', KEYS[1], 'nodes_pending', ARGV[13])
for i, name in ipairs({'positives', 'negatives', 'skipped', 'judgements'}) do
  redis.call('HINCRBY', KEYS[1], name, ARGV[7 + i] - left_out[i])
end
emit(KEYS[1], KEYS[5], ARGV[2])
return 'OK'
"""
)

# KEYS: run, lease, tree, events, open
# ARGV: owner, now, tree index, its depth, whether nodes stand below, then ordinal and node by turns
_ADVANCE = (
    EMIT
    + _FENCE
    + """
if (redis.call('HGET', KEYS[3], 'depth') or '0') ~= ARGV[4] then return 'DONE' end
if not redis.call('ZSCORE', KEYS[5], ARGV[3]) then return 'DONE' end
if #ARGV == 5 and ARGV[5] == '0' then
  redis.call('ZREM', KEYS[5], ARGV[3])
  redis.call('HINCRBY', KEYS[1], 'trees_done', 1)
  emit(KEYS[1], KEYS[4], ARGV[2])
  return 'OK'
end
redis.call('HSET', KEYS[3], 'depth', ARGV[4] + 1)
for i = 6, #ARGV, 2 do redis.call('HSET', KEYS[3], 'n:' .. ARGV[i], ARGV[i + 1]) end
redis.call('HINCRBY', KEYS[1], 'nodes_pending', (#ARGV - 5) / 2)
return 'OK'
"""
)

# KEYS: run, lease, tree, events, open
# ARGV: owner, now, tree index, its depth, ordinal of the node, its result, how many more nodes are pending, then
#       ordinal and node by turns
_GROW = (
    EMIT
    + _FENCE
    + """
if redis.call('HGET', KEYS[3], 'r:' .. ARGV[5]) == ARGV[6] then return 'DONE' end
redis.call('HSET', KEYS[3], 'r:' .. ARGV[5], ARGV[6], 'depth', ARGV[4])
for i = 8, #ARGV, 2 do redis.call('HSET', KEYS[3], 'n:' .. ARGV[i], ARGV[i + 1]) end
redis.call('HINCRBY', KEYS[1], 'nodes_pending', ARGV[7])
if redis.call('ZADD', KEYS[5], ARGV[3], ARGV[3]) == 1 then redis.call('HINCRBY', KEYS[1], 'trees_done', -1) end
emit(KEYS[1], KEYS[4], ARGV[2])
return 'OK'
"""
)


@dataclass(frozen=True)
class NodeCommit:
    """Everything that a judged node adds to a run.

    A round that does not complete its node has no result; `part` names the round; `unknown` counts verdicts on
    other premises, `pending` how many more nodes of the tree are to be judged, `depth` is its level if that goes back.
    """

    tree: int
    ordinal: int
    query: str
    result: Result | None
    known: Known
    pairs: tuple[Pair, ...] = ()
    part: str = ""
    unknown: int = 0
    judgements: int = 0
    pending: int = 0
    depth: int | None = None

    @classmethod
    def of_round(
        cls, run: Run, node_round: NodeRound, outcome: Outcome, answer: NodeAnswer | None, growth: Growth | None
    ) -> Self:
        """The records of a round; the `growth` of its tree completes the node."""
        tree, node = node_round.tree, node_round.node
        return cls(
            tree=tree.index,
            ordinal=node.ordinal,
            query=node.text,
            result=growth.result if growth else None,
            part=node_round.part,
            known=outcome.known if answer else Known(),
            pairs=tuple(_pairs(run, node_round, outcome, answer)) if answer else (),
            unknown=answer.unknown if answer else 0,
            judgements=len(node_round.asked) if answer else 0,
            pending=growth.reopened - (node.ordinal not in tree.cut) if growth else 0,
            depth=growth.depth if growth and growth.depth < tree.depth else None,
        )


@dataclass(frozen=True)
class TreeAdvance:
    """The next level of a tree whose level `depth` is judged; without nodes and deeper ones, the tree is finished."""

    tree: int
    depth: int
    nodes: tuple[Node, ...]
    deeper: bool = False

    @property
    def finishes(self) -> bool:
        """Whether that was the last level."""
        return not self.nodes and not self.deeper


class NodeStore:
    """Trees of all runs of one namespace. Raises Unavailable when Redis is away."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = keys
        self._commit = Script(redis, _COMMIT)
        self._advance = Script(redis, _ADVANCE)
        self._grow = Script(redis, _GROW)
        self._places: dict[str, Mapping[str, int]] = {}  # by run, of its hypotheses

    async def open_trees(self, run_id: str, after: int, limit: int) -> list[Tree]:
        """The first unfinished trees with an index above `after`, in order."""
        async with unavailable_if_down(f"read the frontier of run {run_id}"):
            indexes = await self._redis.zrangebyscore(self._keys.open(run_id), f"({after}", "+inf", 0, limit)
        return await self.trees(run_id, [int(index) for index in indexes])

    async def trees(self, run_id: str, indexes: Sequence[int]) -> list[Tree]:
        """Trees by index."""
        async with unavailable_if_down(f"read the trees of run {run_id}"):
            pipe = self._redis.pipeline(transaction=False)
            for index in indexes:
                pipe.lindex(self._keys.hypotheses(run_id), index)
                pipe.hgetall(self._keys.tree(run_id, index))
            rows = await pipe.execute()
        found = zip(indexes, rows[::2], rows[1::2], strict=True)
        return [_tree(index, row, record) for index, row, record in found if row]  # none of a run that was deleted

    async def tree_of(self, run_id: str, hypothesis_id: str) -> Tree:
        """The tree of a hypothesis. Raises NotFound."""
        places = self._places.get(run_id) or await self._read_places(run_id)
        trees = await self.trees(run_id, [places[hypothesis_id]]) if hypothesis_id in places else []
        if not trees:
            some = ", ".join(itertools.islice(places, SHOWN)) + (", …" if len(places) > SHOWN else "")
            raise errors.NotFound(f"run {run_id} has no hypothesis {hypothesis_id!r}; it has {len(places):,}: {some}")
        return trees[0]

    async def _read_places(self, run_id: str) -> Mapping[str, int]:
        """The place of each hypothesis of a run, which never changes; kept for the last few runs."""
        places: dict[str, int] = {}
        for start in itertools.count(0, CHUNK):
            async with unavailable_if_down(f"look the hypotheses of run {run_id} up"):
                rows = await self._redis.lrange(self._keys.hypotheses(run_id), start, start + CHUNK - 1)
            for place, row in enumerate(rows, start):
                places.setdefault(_row(row, 1)[0], place)
            if len(rows) < CHUNK:
                break
        self._places.pop(run_id, None)
        while len(self._places) >= PLACED_RUNS:
            del self._places[next(iter(self._places))]
        self._places[run_id] = places
        return places

    async def hypothesis(self, run_id: str, tree: int) -> Hypothesis:
        """The hypothesis at the root of a tree; an empty one of a run that was deleted meanwhile."""
        async with unavailable_if_down(f"read a hypothesis of run {run_id}"):
            row = await self._redis.lindex(self._keys.hypotheses(run_id), tree)
        return Hypothesis(*_row(row, 4)) if row else Hypothesis("", "")

    async def is_finished(self, run_id: str, tree: int) -> bool:
        """Whether no node of a tree is left to judge."""
        async with unavailable_if_down(f"read the frontier of run {run_id}"):
            return await self._redis.zscore(self._keys.open(run_id), str(tree)) is None

    async def answers(self, run_id: str, queries: Sequence[str]) -> list[Known]:
        """What the run knows of each query."""
        return (await self.current(run_id, queries))[1] if queries else []

    async def current(self, run_id: str, queries: Sequence[str]) -> tuple[str, list[Known]]:
        """The encoder version that the run follows now (empty: that it began with), and what it knows of each query."""
        async with unavailable_if_down(f"read the answers of run {run_id}"):
            pipe = self._redis.pipeline(transaction=False)
            pipe.hget(self._keys.record(run_id), "current_version")
            pipe.hmget(self._keys.answers(run_id), [digest(query) for query in queries])
            pipe.hmget(self._keys.amended(run_id), queries)
            version, rows, amended = await pipe.execute()
        found = [_known(run_id, row) if row else Known() for row in rows]
        known = [_after(one, _amended(pairs)) if pairs else one for one, pairs in zip(found, amended, strict=True)]
        return version or "", known

    async def amended(self, run_id: str, queries: Sequence[str]) -> list[Amended]:
        """The last amended pair of each premise of each query."""
        if not queries:
            return []
        async with unavailable_if_down(f"read the amendments of run {run_id}"):
            return [_amended(row) for row in await self._redis.hmget(self._keys.amended(run_id), queries)]

    async def commit(self, run_id: str, owner: str, nodes: Sequence[NodeCommit]) -> list[Written]:
        """Commits nodes, each on its own, in one round trip."""
        own = self._keys
        further = [part(run_id) for part in (own.pairs, own.events, own.answers, own.amended)]
        calls = [
            (
                [*self._tree_keys(run_id, node.tree), *further],
                [owner, now(), *_commit_arguments(node)],
            )
            for node in nodes
        ]
        return await self._run(f"store the answers of run {run_id}", self._commit, calls)

    async def advance(self, run_id: str, owner: str, trees: Sequence[TreeAdvance]) -> list[Written]:
        """Opens the next level of trees, each on its own, in one round trip."""
        events, unfinished = self._keys.events(run_id), self._keys.open(run_id)
        calls: list[tuple[list[str], list[Any]]] = []
        for step in trees:
            keys = [*self._tree_keys(run_id, step.tree), events, unfinished]
            calls.append((keys, [owner, now(), step.tree, step.depth, int(step.deeper), *_by_ordinal(step.nodes)]))
        return await self._run(f"store the frontier of run {run_id}", self._advance, calls)

    async def grow(self, run_id: str, owner: str, tree: int, growth: Growth) -> list[Written]:
        """Stores what explains a judged node now, with the new nodes below. A finished tree is open again."""
        keys = [*self._tree_keys(run_id, tree), self._keys.events(run_id), self._keys.open(run_id)]
        node = [growth.ordinal, _result_json(growth.result), len(growth.nodes) + growth.reopened]
        arguments = [owner, now(), tree, growth.depth, *node, *_by_ordinal(growth.nodes)]
        return await self._run(f"store the growth of run {run_id}", self._grow, [(keys, arguments)])

    async def keys_of(self, run_id: str, record: Mapping[str, str]) -> AsyncIterator[list[str]]:
        """The keys of a run's trees and of what it knows, in parts."""
        own, trees = self._keys, int(record["trees"])
        for start in range(0, trees, CHUNK):
            yield [own.tree(run_id, index) for index in range(start, min(start + CHUNK, trees))]
        yield [part(run_id) for part in (own.hypotheses, own.open, own.answers, own.asked, own.suspects)]

    def _tree_keys(self, run_id: str, tree: int) -> list[str]:
        return [self._keys.record(run_id), self._keys.lease(run_id), self._keys.tree(run_id, tree)]

    async def _run(self, doing: str, script: Any, calls: Sequence[tuple[list[str], list[Any]]]) -> list[Written]:
        if not calls:
            return []
        async with unavailable_if_down(doing):
            # No transaction: each script is whole by itself, and all share one wait for the disk.
            pipe = self._redis.pipeline(transaction=False)
            for keys, arguments in calls:
                await script(keys=keys, args=arguments, client=pipe)
            written: list[Written] = await pipe.execute()
            return written


def explaining(tree: Tree, node: Node, amended: Amended) -> tuple[AcceptedPremise, ...]:
    """What explains a judged node by the last amendments of its query: best rank first, then what those add."""
    result, above = tree.results[node.ordinal], {node.text, *tree.path(node)}
    new = {
        one.premise: AcceptedPremise(one.premise_id, one.premise, one.rank, one.leaf)
        for one in amended.values()
        if one.sign == "POSITIVE" and one.premise not in above
    }
    held = {one.text: one for one in result.accepted if one.id not in amended or one.text in new}
    return tuple({**held, **new}.values())


def _pairs(run: Run, node_round: NodeRound, outcome: Outcome, answer: NodeAnswer) -> Iterator[Pair]:
    for premise in outcome.judged:
        state = answer.states[premise.id]
        if state is PairState.REFUSED and run.config.rules.positives_only:
            continue
        yield run.pair(
            node_round.node.text,
            premise,
            state,
            node_id=node_round.node_id,
            annotator=answer.annotator_of(premise.id) or run.config.oracle,
            grade=answer.grade_of(premise.id),
            note=answer.note,
            amended=state.accepted and premise.id in node_round.known.states,  # added, though refused before
            version=node_round.version,
        )


def _commit_arguments(node: NodeCommit) -> list[Any]:
    signs = Counter(pair.sign for pair in node.pairs)
    return [
        f"p:{node.ordinal}:{node.part}" if node.result is None else f"r:{node.ordinal}",
        json.dumps([FORMAT_VERSION]) if node.result is None else _result_json(node.result),
        int(node.result is not None),
        digest(node.query),
        _known_json(node.known) if node.known.states or node.known.statements else "",
        signs["POSITIVE"],
        signs["NEGATIVE"],
        signs["SKIPPED"] + node.unknown,
        node.judgements,
        int(node.result is not None and node.result.failed),
        node.pending,
        node.query,
        "" if node.depth is None else node.depth,
        int(any(pair.amended for pair in node.pairs)),
        *(pair.to_json() for pair in node.pairs),
    ]


def _by_ordinal(nodes: Iterable[Node]) -> list[Any]:
    return [text for node in nodes for text in (node.ordinal, _node_json(node))]


def _node_json(node: Node) -> str:
    return json.dumps([FORMAT_VERSION, node.text, node.premise_id, node.parent, node.depth, node.author])


def _result_json(result: Result) -> str:
    accepted = [astuple(premise) for premise in result.accepted]
    return json.dumps([FORMAT_VERSION, result.failed, accepted, result.version])


def _known_json(known: Known) -> str:
    vectors = list(dict.fromkeys(known.vectors.values()))
    states = {
        name: [state.value, (one := known.premises[name]).text, one.rank, one.score]
        for name, state in known.states.items()
    }
    for name, vector in known.vectors.items():
        states[name].append(vectors.index(vector))
    stored: dict[str, Any] = {"format_version": FORMAT_VERSION, "states": states, "vectors": vectors}
    if known.written:
        stored["written"] = [(one.text, one.author) for one in known.written]
    if known.statements:
        stored["statements"] = [
            {
                **{name: getattr(one, name) for name in _SAID},
                "node_verdict": one.node_verdict.name if one.node_verdict else "",
                "alternatives": [way.premise_ids for way in one.alternatives],
            }
            for one in known.statements
        ]
    return json.dumps(stored)


def _known(run_id: str, row: str) -> Known:
    stored = json.loads(row)
    check_format(stored, FORMAT_VERSION, f"an answer of run {run_id}")
    written = (AcceptedPremise("", row[0], ADDED, leaf=False, author=row[1]) for row in stored.get("written", ()))
    said = map(_statement, stored.get("statements", ()))
    states = {name: PairState(row[0]) for name, row in stored["states"].items()}
    premises = {name: Candidate(name, *row[1:4]) for name, row in stored["states"].items()}
    vectors = {name: stored["vectors"][row[4]] for name, row in stored["states"].items() if len(row) > 4}
    return Known(states, premises, tuple(written), tuple(said), vectors)


def _amended(row: str | None) -> Amended:
    return {name: Pair.from_json(text, 0) for name, text in json.loads(row or "{}").items()}


def _after(known: Known, amended: Amended) -> Known:
    """What is known of a query after people have changed their minds."""
    states = {**known.states, **{name: pair.state for name, pair in amended.items()}}
    found = {name: Candidate(name, pair.premise, pair.rank, pair.score) for name, pair in amended.items()}
    return replace(known, states=states, premises={**found, **known.premises})


def _statement(stored: dict[str, Any]) -> Answer:
    said: dict[str, Any] = {name: tuple(value) if isinstance(value := stored[name], list) else value for name in _SAID}
    ways = tuple(PremiseSet(premise_ids=tuple(one)) for one in stored["alternatives"])
    return Answer(**said, node_verdict=NodeVerdict[stored["node_verdict"] or "UNSPECIFIED"], alternatives=ways)


def _row(text: str, values: int) -> list[Any]:
    """The first values of a row; a later minor release may add others behind them. Raises NewerFormat."""
    row: list[Any] = json.loads(text)
    check_format({"format_version": row[0]}, FORMAT_VERSION, "a node of a tree")
    return row[1 : values + 1]


def _tree(index: int, hypothesis: str, record: dict[str, str]) -> Tree:
    hypothesis_id, text, question, answer = _row(hypothesis, 4)
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
    tree = Tree(index, hypothesis_id, nodes, results, int(record.get("depth", 0)), question, answer)
    tree.cut = cut_nodes(nodes, results)
    return tree
