"""A run against an oracle that hangs, abstains and talks nonsense: does it finish, and what does it call a negative?

What the oracle has said is written down as it is sent, and read here once more, by a few lines that share nothing with
the sampler's own reading.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from aeenc import Channel, SamplerClient, values
from aeenc.oracle import EXPLAINS, REFUSES, Oracle, Task
from aeenc.oracles.gold import GoldOracle
from aeenc.oracles.noisy import Noise, NoisyOracle
from aeenc.trees import Dataset
from aeenc.v1 import oracle_pb2
from benchmarks.harness.rows import Rows
from services.kit import logs
from services.launcher.private_redis import start_private_redis
from services.sampler.__main__ import build
from services.sampler.settings import SamplerSettings

RATES = {"hang": 0.10, "abstain": 0.10, "garbage": 0.05}
TIMEOUT_S = 2.0
K = 20
HYPOTHESES = 200
SPLIT = "train"


class RecordingOracle(NoisyOracle):
    """Keeps what it has sent."""

    def __init__(self, oracle: Oracle, noise: Noise, *, seed: int) -> None:
        super().__init__(oracle, noise, seed=seed)
        self.answers: list[tuple[Task, oracle_pb2.Answer]] = []

    def sent(self, task: Task, answer: oracle_pb2.Answer) -> oracle_pb2.Answer:
        """As the noisy oracle's."""
        answer = super().sent(task, answer)
        self.answers.append((task, answer))
        return answer

    def clearly(self, judgement: oracle_pb2.Judgement) -> set[tuple[str, str]]:
        """(query, premise id) of each candidate that an answer to its own task has judged so, once and nothing else."""
        clear = set()
        for task, answer in self.answers:
            said: dict[str, list[int]] = {}
            for verdict in answer.verdicts:
                said.setdefault(verdict.premise_id, []).append(verdict.judgement)
            asked = {candidate.id for candidate in task.candidates}
            if answer.task_id == task.task_id:
                clear |= {(task.query, name) for name, given in said.items() if name in asked and given == [judgement]}
        return clear


@dataclass
class FinishedRun:
    """One run: how it ended, its pairs, the seconds it took."""

    run: values.Run
    seconds: float
    pairs: list[values.Pair] = field(default_factory=list)

    def of(self, sign: values.PairSign) -> set[tuple[str, str]]:
        """(query, premise id) of the pairs of a sign."""
        return {(pair.query, pair.premise_id) for pair in self.pairs if pair.sign == sign}


async def _run(index_target: str, corpus: str, dataset: Dataset, oracle: Oracle, count: int) -> FinishedRun:
    """A run over the first hypotheses of the split, judged by `oracle` over gRPC."""
    server = await oracle.start("127.0.0.1:0")
    with tempfile.TemporaryDirectory(prefix="aeenc-noisy-") as scratch:
        redis = start_private_redis(Path(scratch))
        try:
            settings = SamplerSettings(
                port=0,
                redis_url=redis.url,
                index_target=index_target,
                oracles={"it": {"target": f"127.0.0.1:{server.port}", "timeout_s": TIMEOUT_S, "max_concurrency": 8}},
            )
            sampler = build(settings)
            async with sampler:
                client = SamplerClient(Channel(f"127.0.0.1:{sampler.port}"))
                [run async for run in client.list_runs()]  # waits until it is ready
                begun = time.monotonic()
                hypotheses = [(f"tree-{n}", text) for n, (_, text) in enumerate(dataset.hypotheses(SPLIT)[:count])]
                run = await client.start_run(hypotheses, corpus=corpus, oracle="it", k=K, split=SPLIT)
                run = await client.wait(run.id)
                ended = FinishedRun(run, time.monotonic() - begun)
                ended.pairs = [pair async for pair in client.list_pairs(run.id)]
                await client.channel.close()
        finally:
            redis.stop()
            await server.stop(0)
    return ended


async def noisy(rows: Rows, index_target: str, corpus: str, dataset: Dataset, *, count: int = HYPOTHESES) -> None:
    """The row of the noisy oracle: the run finishes, and no negative comes from a timeout, abstention or garbage.

    `index_target` is an index that holds `corpus`, built from `dataset`. The baseline is a run against the same gold
    oracle without noise.
    """
    logs.configure(log_format="console", level="error", service="sampler", instance="bench")
    quiet = await _run(index_target, corpus, dataset, GoldOracle(dataset, SPLIT), count)
    oracle = RecordingOracle(GoldOracle(dataset, SPLIT), Noise(**RATES), seed=1)
    ended = await _run(index_target, corpus, dataset, oracle, count)

    progress, told = ended.run.progress, ", ".join(f"{n} {what}" for what, n in sorted(oracle.happened.items()))
    state = ended.run.state.name
    finished = state == "SUCCEEDED" and progress.trees_done == progress.trees == count
    bar = "SUCCEEDED, every tree"
    rows.add(
        f"noisy oracle, {count} trees: the run", state, "", bar, finished, f"{told}; {ended.run.error or 'no error'}"
    )

    negatives = ended.of(values.PairSign.NEGATIVE)
    unfounded = negatives - oracle.clearly(REFUSES)
    rows.at_most("noisy oracle: negatives without a clear refusal", len(unfounded), "pairs", 0, len(negatives))
    gold = {(query.text, text) for query in dataset.queries(SPLIT) for text in query.gold}
    wrong = [p for p in ended.pairs if p.sign == values.PairSign.NEGATIVE and (p.query, p.premise) in gold]
    rows.at_most("noisy oracle: negatives that the gold trees accept", len(wrong), "pairs", 0, len(negatives))
    positives = ended.of(values.PairSign.POSITIVE)
    invented = positives - oracle.clearly(EXPLAINS)
    rows.at_most("noisy oracle: positives that nobody gave", len(invented), "pairs", 0, len(positives))

    annotated = Counter(
        bool(p.provenance.annotator and p.provenance.node_id and p.provenance.rank) for p in ended.pairs
    )
    rows.at_most("noisy oracle: pairs without annotator, node or rank", annotated[False], "pairs", 0, len(ended.pairs))
    rows.note("noisy oracle: nodes given up", progress.nodes_failed, "nodes", progress.nodes_judged)
    rows.note("noisy oracle: judgements that decided nothing", progress.skipped, "verdicts", progress.judgements)
    found = len(positives) / max(1, len(quiet.of(values.PairSign.POSITIVE)))
    rows.note("noisy oracle: positives, share of the quiet run's", round(found, 3), "", len(positives))
    rows.note("noisy oracle: seconds, beside the quiet run's", round(ended.seconds, 1), "s", round(quiet.seconds, 1))
