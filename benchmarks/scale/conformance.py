"""The same corpus on files and in a Milvus, asked the same in every mode: equal ids, and the largest gap of scores.

Texts, splits, explanations and accepted premises are EntailmentBank's; vectors are made up from the words of each text,
tags are some of its words. Both answer over gRPC, the one on Milvus from a milvus-lite of its own. Needs milvus-lite.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aeenc import Channel, IndexClient
from aeenc.calls.retrieval import Mode
from aeenc.trees import Dataset
from benchmarks.harness.rows import Rows
from benchmarks.harness.services import premises_of
from benchmarks.tables.table_rows import ORDERED
from services.index.__main__ import build
from services.index.settings import IndexSettings
from support.servers.milvus_server import MilvusServer
from support.waiting import until
from support.worlds.index_world import RunningEncoder

CORPUS, K, AT_ONCE = "conformance", 20, 4
MODES: tuple[Mode, ...] = ("dense", "lexical", "iterative_lexical", "hybrid")
PRIOR, FEEDBACK, SPLITS = 0.2, 0.3, ("train",)
TAGGED, TAGS = {"is", "of", "kind", "animal"}, ("is,-of", "kind", "animal,of")
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
    for mode, ids, chosen in itertools.product(MODES, named, itertools.product(flags, repeat=6)):
        prior, feedback, in_split, has_tags, has_accepted, has_features = chosen
        if (prior and mode == "iterative_lexical") or (feedback and mode.endswith("lexical")):
            continue
        if has_features and mode != "hybrid":
            continue
        options: dict[str, Any] = {"mode": mode}
        options |= {"prior": PRIOR} if prior else {}
        options |= {"negative_feedback": FEEDBACK} if feedback else {}
        options |= {"splits": SPLITS} if in_split else {}
        options |= {"tags": TAGS} if has_tags else {}
        options |= {"fusion": ORDERED.fusion} if has_features else {}
        yield Asked(options, has_accepted, ids)


def ids_of(named: str, ids: Sequence[str], gold: Sequence[str]) -> dict[str, Any]:
    """The options that name premises: some of all `ids` with the `gold` ones, or all but these, before a last one."""
    if named == "only ids":
        return {"only_ids": sorted({*ids[::EVERY], *gold})}
    return {"exclude": gold, "before_id": ids[int(BEFORE * len(ids))]} if named else {}


async def conformance(rows: Rows, home: Path, dataset: Dataset, queries: int) -> None:
    """Builds both, explains both, asks both."""
    encoder, milvus = RunningEncoder(), MilvusServer(home / "milvus")
    lite = {
        "artifacts_dir": home / "lite",
        "backend": "milvus",
        "milvus_uri": milvus.uri,
        "milvus_timeout_s": CALL_S,
    }
    async with AsyncExitStack() as stack:
        await encoder.server.start()
        stack.push_async_callback(encoder.stop)
        milvus.start()
        stack.callback(milvus.stop)
        clients = []
        for settings in ({"artifacts_dir": home / "artifacts"}, lite):
            running = build(IndexSettings(port=0, encoder_target=encoder.target, **settings))
            await stack.enter_async_context(running)
            await until(lambda server=running: server.readiness.answers, timeout_s=60)  # type: ignore[misc]
            channel = Channel(f"127.0.0.1:{running.port}", timeout_s=CALL_S)
            clients.append(IndexClient(channel))
            stack.push_async_callback(channel.close)
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
