"""Runs among dying processes: `make bench NAME=sampler-soak`.

Samplers, Redis and the oracle get SIGKILL every second or so, whatever the victim is doing, and a new start at once; at
least 200 times while the run goes on. Its pairs are compared with those of an undisturbed run, and what the oracle was
asked with what was stored by then. Needs EntailmentBank in `data/entailmentbank` or in AEENC_BENCH_DATA.
Eight minutes; `--kills` and `--trees` make it shorter, and the rows then say so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aeenc import PATIENT, Channel, SamplerClient, errors, values
from aeenc.oracle import Answer, Task, Verdict
from aeenc.oracles.gold import GoldOracle
from aeenc.trees import Dataset
from benchmarks.harness.entailmentbank import DATA, entailmentbank
from benchmarks.harness.rows import Rows, run
from benchmarks.harness.services import CORPUS, RetrievalFleet, running_retrieval
from benchmarks.sampler.acs_definition import differences, recorded
from services.launcher.processes import free_port
from support.service_process import RedisProcess, ServiceProcess

K = 20
SPLIT = "train"
TEND_S = 2.0
WITNESS = "witness"  # what makes this script the oracle's process
PAUSE_S = (0.3, 1.5)  # between two kills
SAMPLER = {"wave_nodes": 64, "lease_s": 1.0, "poll_s": 0.1}
ORACLE = {"max_attempts": 20, "batch_tasks": 4, "max_concurrency": 4, "timeout_s": 10.0}


class WitnessOracle(GoldOracle):
    """Answers as gold does, after `delay_s`, and writes down what it is asked and when.

    A line is written before a verdict is given, by one `write` to a file opened for appending: SIGKILL tears none.
    """

    def __init__(self, dataset: Dataset, split: str, log: Path, delay_s: float) -> None:
        super().__init__(dataset, split)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._delay_s = delay_s

    async def judge(self, task: Task) -> dict[str, Verdict] | Answer[dict[str, Verdict]]:  # type: ignore[override]
        """Writes the question down, then answers."""
        asked = [task.run_id, time.time(), task.query, [candidate.text for candidate in task.candidates]]
        os.write(self._log, (json.dumps(asked) + "\n").encode())
        await asyncio.sleep(self._delay_s)
        return super().judge(task)


def asked_at(log: Path, run_id: str) -> dict[tuple[str, str], list[float]]:
    """When a run asked for each (query, premise), in seconds since the epoch."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in log.read_text().splitlines():
        run, at, query, premises = json.loads(line)
        if run == run_id:
            for premise in premises:
                times[query, premise].append(at)
    return times


@dataclass
class SoakFleet:
    """Two samplers over one Redis, a slow oracle that is killed and a fast one that is not, and all that can die."""

    clients: list[SamplerClient]
    victims: list[ServiceProcess | RedisProcess]
    asked: Path


@asynccontextmanager
async def soak_fleet(retrieval: RetrievalFleet, delay_s: float) -> AsyncIterator[SoakFleet]:
    """Starts it; everything ends with the block."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        home = Path(scratch)
        asked, redis = home / "asked.jsonl", RedisProcess(home / "redis")
        slow, fast = (_oracle(name, home, asked, seconds) for name, seconds in (("slow", delay_s), ("fast", 0.0)))
        own = {
            **SAMPLER,
            "redis_url": redis.url,
            "namespace": "bench",
            "index_target": retrieval.index.process.target,
            "oracles": {child.name: {**ORACLE, "target": child.target} for child in (slow, fast)},
        }
        samplers = [ServiceProcess.of("sampler", home, name=f"sampler-{n}", **own) for n in range(2)]
        children = (slow, fast, *samplers)
        try:
            for child in children:
                child.start()
            await asyncio.gather(*(child.ready() for child in children))
            channels = [Channel(sampler.target, timeout_s=30, retry=PATIENT) for sampler in samplers]
            clients = [SamplerClient(channel) for channel in channels]
            yield SoakFleet(clients, [redis, slow, *samplers], asked)
            await asyncio.gather(*(client.channel.close() for client in clients))
        finally:
            for child in children:
                await child.stop()
            redis.stop()


def _oracle(name: str, home: Path, asked: Path, delay_s: float) -> ServiceProcess:
    port = free_port(set())
    command = [__file__, WITNESS, str(DATA), str(port), str(asked), str(delay_s)]
    return ServiceProcess(name, command, home, port=port, has_health=False)


async def kill_at_random(
    victims: Sequence[ServiceProcess | RedisProcess], kills: int, going_on: Callable[[], bool], seed: int
) -> Counter[str]:
    """Kills one victim after another that has come up again, until it is enough or nothing goes on any more."""
    rng, killed = random.Random(seed), Counter[str]()
    restarting: dict[str, asyncio.Task[None]] = {}
    while killed.total() < kills:
        await asyncio.sleep(rng.uniform(*PAUSE_S))
        up = [victim for victim in victims if victim.name not in restarting or restarting[victim.name].done()]
        if not going_on():
            break
        if not up:
            continue
        victim = rng.choice(up)
        if victim.name in restarting:
            await restarting[victim.name]
        await asyncio.to_thread(victim.kill)
        killed[victim.name] += 1
        restarting[victim.name] = asyncio.create_task(victim.restart())
    await asyncio.gather(*restarting.values())
    return killed


@dataclass
class EventFollower:
    """Follows a run's events across deaths; notes those that come out of order."""

    client: SamplerClient
    seq: int = 0
    wrong: list[str] = field(default_factory=list)

    async def follow(self, run_id: str) -> None:
        """Until the run has succeeded."""
        while True:
            with contextlib.suppress(errors.AeencError):
                async for seq, seen in self.client.watch(run_id, from_seq=self.seq + 1):
                    if seq != self.seq + 1:
                        self.wrong.append(f"{seq} after {self.seq}")
                    self.seq = seq
                    if seen.state == values.WorkState.SUCCEEDED:
                        return
            await asyncio.sleep(0.05)


@dataclass
class RunStarter:
    """Starts a run again and again, which must change nothing, and resumes it when the oracle was away too long."""

    clients: Sequence[SamplerClient]
    start: dict[str, Any]
    ids: set[str] = field(default_factory=set)
    resumed: int = 0

    async def tend(self, going_on: asyncio.Task[None]) -> None:
        """Until the task is done."""
        while not going_on.done():
            for client in self.clients:
                with contextlib.suppress(errors.AeencError):
                    started = await client.start_run(**self.start, timeout_s=5)
                    self.ids.add(started.id)
                    if started.state == values.WorkState.FAILED:
                        await client.resume(started.id)
                        self.resumed += 1
            await asyncio.sleep(TEND_S)


async def asked_again(client: SamplerClient, run_id: str, asked: Path) -> tuple[int, int]:
    """Pairs asked for again after their verdict was stored, and pairs asked for more than once at all.

    A pair bears the time just before its verdict was stored. A verdict that died with its sampler is rightly asked for
    again, and the pair then bears the later time.
    """
    stored = {
        (pair.query, pair.premise): pair.provenance.judged_at.timestamp() if pair.provenance.judged_at else 0.0
        async for pair in client.list_pairs(run_id)
        if pair.sign != values.PairSign.UNSPECIFIED
    }
    times = asked_at(asked, run_id)
    assert stored.keys() <= times.keys(), "a pair was recorded that nobody was asked about"
    again = sum(max(times[key]) > at for key, at in stored.items())
    return again, sum(len(at) > 1 for at in times.values())


async def among_dying_processes(rows: Rows, on: SoakFleet, hypotheses: list[tuple[str, str]], kills: int) -> None:
    """One run among dying processes, one undisturbed after it."""
    config = {"corpus": CORPUS, "k": K, "split": SPLIT}
    begun, client = time.monotonic(), on.clients[0]
    tender = RunStarter(on.clients, {"hypotheses": hypotheses, **config, "oracle": "slow", "idempotency_key": "once"})
    started = await client.start_run(**tender.start)
    watcher = EventFollower(on.clients[1])
    watching = asyncio.create_task(watcher.follow(started.id))
    tending = asyncio.create_task(tender.tend(watching))
    killed = await kill_at_random(on.victims, kills, lambda: not watching.done(), seed=3)
    still_on = not watching.done()
    await asyncio.gather(watching, tending)
    told = f"{dict(killed)}, {time.monotonic() - begun:.0f} s, resumed {tender.resumed} times"
    rows.at_least(f"kills while a run over {len(hypotheses)} trees went on", killed.total(), "kills", 200, told)
    rows.add("the run still went on at the last kill", still_on, "", "True", still_on)
    pairs, progress = await recorded(client, started.id), (await client.get_run(started.id)).progress
    undisturbed = await client.start_run(hypotheses, **config, oracle="fast")
    ended = await client.wait(undisturbed.id)
    assert ended.state == values.WorkState.SUCCEEDED, ended.error
    swaps, others = differences(pairs, await recorded(client, undisturbed.id))
    same = f"{len(pairs)} pairs, {len(swaps)} in rank-K swaps"
    rows.at_most("pairs unlike an undisturbed run's, but for rank-K swaps", len(others), "pairs", 0, same)
    again, twice = await asked_again(client, started.id, on.asked)
    rows.at_most("verdicts asked for again after they were stored", again, "pairs", 0, f"{twice} asked again at all")
    miscounted = abs(progress.judgements - len(pairs))
    rows.at_most("judgements counted twice or not at all", miscounted, "pairs", 0, progress.judgements)
    rows.at_most("events twice, lost or out of order", len(watcher.wrong), "events", 0, watcher.seq)
    rows.at_most("further runs under one idempotency key", len(tender.ids | {started.id}) - 1, "runs", 0)


async def main(options: argparse.Namespace) -> None:
    """The soak."""
    dataset, rows = entailmentbank(), Rows("sampler-soak")
    trees = dataset.trees(SPLIT)[: options.trees]
    hypotheses = [(f"{n}-{tree.id}", tree.hypothesis) for n, tree in enumerate(trees)]
    async with running_retrieval(dataset) as retrieval, soak_fleet(retrieval, options.delay_s) as on:
        await among_dying_processes(rows, on, hypotheses, options.kills)
    rows.finish()


if __name__ == "__main__":
    if WITNESS in sys.argv[1:2]:
        trees, port, log, delay_s = sys.argv[2:]
        WitnessOracle(Dataset.load(trees), SPLIT, Path(log), float(delay_s)).serve(f"127.0.0.1:{port}")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--trees", type=int, default=1313)
    parser.add_argument("--delay-s", type=float, default=0.8, help="how long the oracle takes for a call")
    run(main(parser.parse_args()))
