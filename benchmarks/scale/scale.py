"""Corpora beyond one process: `make bench NAME=scale` runs all parts, ARGS='--only PART …' some.

    quick        2 M facts by Ray with an encoder that makes vectors up; workers killed; a quarter of an hour
    large        10 M premises in float16 with IVF, beside bare FAISS: an hour, 30 GB
    conformance  every mode on files and in milvus-lite: the same ids and scores; made-up vectors by the words of each
                 text, tags that are some of its words, EntailmentBank's texts, splits, explanations and accepted
                 premises; needs milvus-lite

Facts are made of EntailmentBank's by a seed, some repeated, some with the text of another. All stays on loopback.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aeenc import IndexClient
from aeenc.calls.retrieval import Mode
from aeenc.trees import Dataset
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows, run_parts
from benchmarks.harness.services import premises_of, running_index
from benchmarks.scale.distributed import quick
from benchmarks.scale.large import large
from benchmarks.tables.table_rows import ORDERED
from support.servers.milvus_server import MilvusServer
from support.worlds.index_world import RunningEncoder

CORPUS, K, AT_ONCE = "conformance", 20, 4
TAGGED = {"is", "of", "kind", "animal"}
OPTIONS: Mapping[str, Any] = {
    "prior": 0.2,
    "negative_feedback": 0.3,
    "splits": ("train",),
    "tags": ("is,-of", "kind", "animal,of"),
    "fusion": ORDERED.fusion,
}
# Options that a mode does not take.
WITHOUT: Mapping[Mode, set[str]] = {
    "dense": {"fusion"},
    "lexical": {"negative_feedback", "fusion"},
    "iterative_lexical": {"prior", "negative_feedback", "fusion"},
    "hybrid": set(),
}
EVERY, BEFORE = 16, 0.75  # an id of so many, and the share of premises that a last id leaves
CALL_S = 1800.0


@dataclass(frozen=True)
class Asked:
    """The options of a call, by name; `has_accepted` adds each text's first gold premise, `ids` name premises."""

    options: Mapping[str, Any]
    has_accepted: bool
    ids: str

    @property
    def name(self) -> str:
        """The options in words."""
        chosen = [f"{key} {value}" for key, value in self.options.items()]
        return ", ".join([*chosen, *["accepted"] * self.has_accepted, *[self.ids] * bool(self.ids)])


def combinations() -> Iterator[Asked]:
    """Every combination that the contract allows."""
    flags, named = (False, True), ("", "only ids", "excluded and before an id")
    for mode, ids, chosen in itertools.product(WITHOUT, named, itertools.product(flags, repeat=6)):
        has_accepted, *others = chosen
        options = {name: value for (name, value), is_chosen in zip(OPTIONS.items(), others, strict=True) if is_chosen}
        if not options.keys() & WITHOUT[mode]:
            yield Asked({"mode": mode, **options}, has_accepted, ids)


def ids_of(named: str, ids: Sequence[str], gold: Sequence[str]) -> dict[str, Any]:
    """The options that name premises: some of all `ids` with the `gold` ones, or all but these, before a last one."""
    if named == "only ids":
        return {"only_ids": sorted({*ids[::EVERY], *gold})}
    return {"exclude": gold, "before_id": ids[int(BEFORE * len(ids))]} if named else {}


async def conformance(rows: Rows, home: Path, dataset: Dataset, queries: int) -> None:
    """Builds both, explains both, asks both."""
    encoder, milvus = RunningEncoder(), MilvusServer(home / "milvus")
    async with AsyncExitStack() as stack:
        await encoder.server.start()
        stack.push_async_callback(encoder.stop)
        milvus.start()
        stack.callback(milvus.stop)
        clients = []
        for settings in ({}, {"backend": "milvus", "milvus_uri": milvus.uri, "milvus_timeout_s": CALL_S}):
            index = await stack.enter_async_context(running_index(encoder_target=encoder.target, **settings))
            clients.append(index.client(timeout_s=CALL_S))
            stack.push_async_callback(clients[-1].channel.close)
        for client in clients:
            await _fill(client, dataset)
        await _compare(rows, clients, dataset, queries)


async def _fill(client: IndexClient, dataset: Dataset) -> None:
    tagged = [replace(one, tags=tuple(sorted(TAGGED.intersection(one.text.split())))) for one in premises_of(dataset)]
    await client.build(CORPUS, tagged)
    ids = {one.text: one.id for one in dataset.candidates()}
    gold = [(query.text, [ids[one] for one in query.gold]) for query in dataset.queries("train")]
    await client.put_explanations(CORPUS, gold, replace=True)


async def _compare(rows: Rows, clients: Sequence[IndexClient], dataset: Dataset, count: int) -> None:
    """Asks both for every combination: lists with other ids, and the largest difference of scores."""
    known = dataset.queries("dev")
    chosen = known[:: max(1, len(known) // count)][:count]
    ids = {one.text: one.id for one in dataset.candidates()}
    differing, largest, lists, empty = 0, 0.0, 0, 0
    for asked in combinations():
        started = time.monotonic()
        for start in range(0, len(chosen), AT_ONCE):
            part = chosen[start : start + AT_ONCE]
            more: dict[str, Any] = {"accepted": [[ids[one.gold[0]]] for one in part]} if asked.has_accepted else {}
            more |= ids_of(asked.ids, list(ids.values()), [ids[one.gold[-1]] for one in part])
            texts = [one.text for one in part]
            answers = [await one.retrieve(CORPUS, texts, k=K, **asked.options, **more) for one in clients]
            for mine, theirs in zip(*answers, strict=True):
                lists += 1
                empty += not mine
                if [hit.id for hit in mine] != [hit.id for hit in theirs]:
                    differing += 1
                    continue
                largest = max([largest, *(abs(a.score - b.score) for a, b in zip(mine, theirs, strict=True))])
        print(f"      {asked.name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    name = f"{len(ids):,} premises, {len(list(combinations()))} combinations, {lists:,} lists of {K} on milvus-lite"
    rows.at_most(f"{name}: other ids than on files", differing, "", 0, lists)
    rows.at_most(f"{name}: largest difference of scores", largest, "", 1e-6)
    rows.note(f"{name}: empty on both", empty, "")


def texts() -> list[str]:
    """The facts that others are made of."""
    return [candidate.text for candidate in entailmentbank().candidates()]


async def in_folder(part: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Runs a part over a folder of its own."""
    rows, *others = arguments
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        await part(rows, Path(scratch), *others)


if __name__ == "__main__":
    run_parts(
        "scale",
        __doc__,
        {
            "quick": lambda rows, given: in_folder(quick, rows, texts(), given.facts, given.compared),
            "large": lambda rows, given: in_folder(large, rows, given.rows),
            "conformance": lambda rows, given: in_folder(conformance, rows, entailmentbank(), given.queries),
        },
        {
            "--facts": {"type": int, "default": 2_000_000, "help": "of the part quick"},
            "--compared": {"type": int, "default": 200_000, "help": "of the part quick, also built from a stream"},
            "--rows": {"type": int, "default": 10_000_000, "help": "of the part large"},
            "--queries": {"type": int, "default": 8, "help": "of the part conformance"},
        },
    )
