"""The trees and answers of runs in Redis.

One node is committed whole - pairs, result, answers, counters, event - in one script, and committing it again changes
nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

from redis.asyncio import Redis

from services.sampler import scripts
from services.sampler.acs import ROOT, Accepted, Node, Result, Ruling, Tree
from services.sampler.run_keys import RunKeys
from services.sampler.runs import FORMAT_VERSION, Pair, now
from services.store.redis import unavailable_if_down

# OK: stored. DONE: it was stored before. LOST: another sampler has the run. STOPPED: the run was cancelled.
Written = Literal["OK", "DONE", "LOST", "STOPPED"]


@dataclass(frozen=True)
class NodeCommit:
    """All that judging one node adds to a run, or one round of it: then there is no result yet, and `part` names it."""

    tree: int
    ordinal: int
    query: str
    result: Result | None
    known: Mapping[str, Ruling]
    pairs: tuple[Pair, ...] = ()
    part: str = ""
    filtered: int = 0
    skipped: int = 0
    judgements: int = 0


@dataclass(frozen=True)
class TreeAdvance:
    """The next level of a tree whose level `depth` is judged; no nodes: the tree is finished."""

    tree: int
    depth: int
    nodes: tuple[Node, ...]


class NodeStore:
    """Trees of all runs of one namespace. Raises Unavailable when Redis is away."""

    def __init__(self, redis: Redis, keys: RunKeys) -> None:
        self._redis: Any = redis  # its types cover bytes and str answers; ours are str
        self._keys = keys
        self._commit: Any = redis.register_script(scripts.COMMIT)
        self._advance: Any = redis.register_script(scripts.ADVANCE)

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
        return [_tree(index, rows[2 * n], rows[2 * n + 1]) for n, index in enumerate(indexes)]

    async def answers(self, run_id: str, queries: Sequence[str]) -> list[dict[str, Ruling]]:
        """What the run knows of each query, by premise id."""
        if not queries:
            return []
        async with unavailable_if_down(f"read the answers of run {run_id}"):
            rows = await self._redis.hmget(self._keys.answers(run_id), [_query_key(query) for query in queries])
        return [
            {name: Ruling(code) for name, code in json.loads(row)["rulings"].items()} if row else {} for row in rows
        ]

    async def commit(self, run_id: str, owner: str, nodes: Sequence[NodeCommit]) -> list[Written]:
        """Commits nodes, each on its own, in one round trip."""
        keys = self._keys
        return await self._run(
            f"store the answers of run {run_id}",
            self._commit,
            [
                (
                    [
                        keys.record(run_id),
                        keys.lease(run_id),
                        keys.tree(run_id, node.tree),
                        keys.pairs(run_id),
                        keys.events(run_id),
                        keys.answers(run_id),
                    ],
                    [owner, now(), *_commit_arguments(node)],
                )
                for node in nodes
            ],
        )

    async def advance(self, run_id: str, owner: str, trees: Sequence[TreeAdvance]) -> list[Written]:
        """Opens the next level of trees, each on its own, in one round trip."""
        keys = self._keys
        return await self._run(
            f"store the frontier of run {run_id}",
            self._advance,
            [
                (
                    [
                        keys.record(run_id),
                        keys.lease(run_id),
                        keys.tree(run_id, step.tree),
                        keys.events(run_id),
                        keys.open(run_id),
                    ],
                    [
                        owner,
                        now(),
                        step.tree,
                        step.depth,
                        *(text for node in step.nodes for text in (node.ordinal, _node_json(node))),
                    ],
                )
                for step in trees
            ],
        )

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


def _commit_arguments(node: NodeCommit) -> list[Any]:
    signs = Counter(pair.sign for pair in node.pairs)
    rulings = {name: ruling.value for name, ruling in node.known.items()}
    return [
        f"p:{node.ordinal}:{node.part}" if node.result is None else f"r:{node.ordinal}",
        json.dumps([FORMAT_VERSION]) if node.result is None else _result_json(node.result),
        int(node.result is not None),
        _query_key(node.query),
        json.dumps({"format_version": FORMAT_VERSION, "rulings": rulings}) if rulings else "",
        signs["POSITIVE"],
        signs["NEGATIVE"],
        node.filtered,
        node.skipped,
        node.judgements,
        int(node.result is not None and node.result.failed),
        *(pair.to_json() for pair in node.pairs),
    ]


def _query_key(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()


def _node_json(node: Node) -> str:
    return json.dumps([FORMAT_VERSION, node.text, node.premise_id, node.parent, node.depth])


def _result_json(result: Result) -> str:
    return json.dumps([FORMAT_VERSION, result.failed, [astuple(premise) for premise in result.accepted]])


def _tree(index: int, hypothesis: str, record: dict[str, str]) -> Tree:
    _, hypothesis_id, text = json.loads(hypothesis)
    nodes = [Node(ROOT, text)]
    results: dict[int, Result] = {}
    for name, value in record.items():
        kind, _, ordinal = name.partition(":")
        if kind == "n":
            _, node_text, premise_id, parent, depth = json.loads(value)
            nodes.append(Node(int(ordinal), node_text, premise_id, parent, depth))
        elif kind == "r":
            _, failed, accepted = json.loads(value)
            results[int(ordinal)] = Result(tuple(Accepted(*row) for row in accepted), failed)
    nodes.sort(key=lambda node: node.ordinal)
    return Tree(index, hypothesis_id, nodes, results, int(record.get("depth", 0)))
