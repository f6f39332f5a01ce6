"""The sampler on all train trees: speed against one node at a time, pairs against the definition, memory.

`make bench NAME=sampler`. Both ways take turns over the same services, each over a Redis of its own with every write on
disk before it is acknowledged. Needs EntailmentBank in `data/entailmentbank` or in AEENC_BENCH_DATA. Eight
minutes; `--only PART` runs one part.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import SamplerClient, values
from aeenc.trees import Dataset
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows, run_parts
from benchmarks.harness.services import (
    CORPUS,
    RetrievalFleet,
    running_oracle,
    running_retrieval,
    running_sampler,
)
from benchmarks.sampler.acs_definition import Definition, SignedPair, differences, recorded
from services.corpus.generation import open_generation
from services.store.artifacts import ArtifactStore

K = 20
MAX_DEPTH = 8
SPLIT = "train"
ONE_AT_A_TIME = {"batch_tasks": 1, "max_concurrency": 1}
POLL_S = 0.2
Hypotheses = Sequence[tuple[str, str]]


async def ended(client: SamplerClient, run_id: str) -> values.Run:
    """The run once it has ended, looked at now and then: a watcher would take part in what is measured."""
    live = (values.WorkState.PENDING, values.WorkState.RUNNING)
    while (found := await client.get_run(run_id)).state in live:  # noqa: ASYNC110 -- the run is in another process
        await asyncio.sleep(POLL_S)
    assert found.state == values.WorkState.SUCCEEDED, found.error
    return found


async def sampled(
    retrieval: RetrievalFleet, oracle: str, hypotheses: Hypotheses, *, one_at_a_time: bool
) -> tuple[float, values.Run, dict[SignedPair, float]]:
    """Seconds of a run from its start to its end as the sampler records them, the run, and its pairs."""
    settings = {"wave_nodes": 1} if one_at_a_time else {}
    how = {"target": oracle, **(ONE_AT_A_TIME if one_at_a_time else {})}
    async with running_sampler(retrieval.index.process.target, how, **settings) as sampler:
        started = await sampler.client.start_run(
            hypotheses, corpus=CORPUS, oracle="gold", k=K, max_depth=MAX_DEPTH, split=SPLIT
        )
        done = await ended(sampler.client, started.id)
        pairs = await recorded(sampler.client, started.id)
    assert done.ended_at is not None
    return (done.ended_at - done.created_at).total_seconds(), done, pairs


@asynccontextmanager
async def judged_retrieval(dataset: Dataset) -> AsyncIterator[tuple[RetrievalFleet, str]]:
    """An encoder and an index over the data, and the address of a gold oracle."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        async with running_retrieval(dataset) as retrieval, running_oracle(Path(scratch), SPLIT) as oracle:
            yield retrieval, oracle


async def encoded(retrieval: RetrievalFleet, texts: Sequence[str]) -> tuple[dict[str, NDArray[np.float32]], float]:
    """The query vectors of texts from the encoder itself, and the texts a second that it gave."""
    client = retrieval.encoder.client(retry=True, timeout_s=120)
    begun = time.monotonic()
    answers = [part.vectors async for part in client.encode_all(texts, lane="interactive", precision="float32")]
    rate = len(texts) / (time.monotonic() - begun)
    await client.channel.close()
    return dict(zip(texts, np.concatenate(answers), strict=True)), rate


async def speed_and_pairs(rows: Rows, given: Any) -> None:
    """All trees in flights and one node at a time, in turn; both against the definition."""
    dataset = entailmentbank()
    hypotheses = [(f"{n}-{tree.id}", tree.hypothesis) for n, tree in enumerate(dataset.trees(SPLIT)[: given.trees])]
    async with judged_retrieval(dataset) as (retrieval, oracle):
        queries, rate = await encoded(retrieval, [query.text for query in dataset.queries(SPLIT)])
        store = ArtifactStore(retrieval.index.artifacts_dir)
        vectors = np.array(open_generation(store, CORPUS, retrieval.generation).vectors)
        together, alone = [], []
        for _ in range(given.rounds):
            together.append(await sampled(retrieval, oracle, hypotheses, one_at_a_time=False))
            alone.append(await sampled(retrieval, oracle, hypotheses, one_at_a_time=True))
    definition = Definition(dataset, SPLIT, K, MAX_DEPTH, dataset.candidates(), vectors, queries)
    seconds = [statistics.median(one[0] for one in kind) for kind in (together, alone)]
    rows.note("seconds of each round", [round(one[0], 1) for one in together], "s", [round(one[0], 1) for one in alone])
    _, done, pairs = together[-1]
    nodes = done.progress.nodes_judged
    told = f"{seconds[0]:.1f} s against {seconds[1]:.1f} s for {nodes} nodes of {len(hypotheses)} trees"
    rows.at_least(f"{len(hypotheses)} trees, K = {K}: over one node at a time", seconds[1] / seconds[0], "x", 3.0, told)
    rows.note("nodes a second; baseline: texts a second of the encoder alone", nodes / seconds[0], "1/s", round(rate))
    swaps, others = differences(pairs, alone[-1][2])
    listed = [f"{pair.query} / {pair.premise}" for pair in swaps]
    rows.at_most("pairs unlike one node at a time, but for rank-K swaps", len(others), "pairs", 0, listed)
    expected = definition.pairs([text for _, text in hypotheses])
    swaps, others = differences(pairs, expected)
    listed = [f"{pair.query} / {pair.premise}" for pair in swaps]
    rows.at_most("pairs unlike the definition, but for rank-K swaps", len(others), "pairs", 0, listed or len(expected))
    found = {(pair.query, pair.premise) for pair in pairs if pair.sign == "+"}
    reach = definition.gold_in_reach({pair.query for pair in expected})
    rows.at_most("gold children in the top K not found", len(reach - found), "pairs", 0, len(reach))
    gold = {(query.text, premise) for query in dataset.queries(SPLIT) for premise in query.gold}
    rows.at_most("positives invented", len(found - gold), "pairs", 0, len(found))


async def memory(rows: Rows, given: Any) -> None:
    """The sampler's resident memory while a run over many hypotheses goes on."""
    dataset = entailmentbank()
    texts = dict.fromkeys([q.text for q in dataset.queries(SPLIT)] + [one.text for one in dataset.candidates()])
    hypotheses = [(str(n), text) for n, text in enumerate(list(texts)[: given.in_flight])]
    resident: list[float] = []
    async with (
        judged_retrieval(dataset) as (retrieval, oracle),
        running_sampler(retrieval.index.process.target, {"target": oracle}) as sampler,
    ):
        idle = sampler.process.resident_mb()
        started = await sampler.client.start_run(hypotheses, corpus=CORPUS, oracle="gold", k=K, split=SPLIT)
        following = asyncio.ensure_future(ended(sampler.client, started.id))
        while not following.done():
            resident.append(sampler.process.resident_mb())
            await asyncio.sleep(POLL_S)
        done = await following
    fifth = len(resident) // 5
    early, late = statistics.median(resident[fifth : 2 * fifth]), statistics.median(resident[-fifth:])
    told = f"{idle:.0f} MB idle, {done.progress.nodes_judged} nodes, {done.progress.judgements} verdicts"
    rows.at_most(f"{len(hypotheses):,} hypotheses: most resident memory", max(resident), "MB", 300.0, told)
    rows.at_most("… last fifth of the run over the second", late / early - 1, "share", 0.05, f"{early:.0f} MB")


if __name__ == "__main__":
    run_parts(
        "sampler",
        __doc__,
        {"speed": speed_and_pairs, "memory": memory},
        {
            "--trees": {"type": int, "default": 1313},
            "--in-flight": {"type": int, "default": 10_000, "help": "hypotheses of the run whose memory is measured"},
            "--rounds": {"type": int, "default": 2, "help": "how often the two ways take turns"},
        },
    )
