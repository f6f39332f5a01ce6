"""A run that asks a language model whose endpoint fails: the nodes lost, and premises refused without a refusal.

`make bench NAME=language-model`. An endpoint over loopback answers 503, 429 or 401, talks nonsense, or says nothing,
from the start or amid the run, for six seconds or until a person mends it; a run that fails is then resumed. Oracle and
sampler have their own defaults, but for the sampler's patience. Then an endpoint behaves like five kinds of models: the
nodes of 50 that are judged. Five minutes; `--seconds` shortens the faults, `--only-kinds` leaves them out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from aeenc import values
from aeenc.oracles.llm import LanguageModelOracle
from benchmarks.harness.rows import ROOT, Rows
from services.kit import logs
from services.launcher.private_redis import start_private_redis

sys.path.insert(0, str(ROOT / "tests"))
from support.servers.model_endpoint import KEY, KINDS, THINKING_TOKENS, ModelEndpoint, Sent
from support.worlds.sampler_world import small_world

FAULTS = {
    "503": "unavailable",
    "429": "rate limit",
    "401": "unauthorized",
    "nonsense": "prose",
    "an empty answer": "empty",
    "nothing": "hang up",
}
FAULT_S = 6.0
PATIENCE_S = 15.0
AMID = 120  # answers before a fault amid the run
HYPOTHESES = [(f"tree-{n}", f"hypothesis {n}") for n in range(96)]
_QUERY = re.compile(r'^Statement: (".*")$', re.MULTILINE)


def verdict(text: str, number: int) -> str:  # noqa: ARG001 -- the endpoint's
    """An eighth of the premises explains, whatever is asked: trees of two levels."""
    return "explains" if sum(text.encode()) % 8 == 0 else "does_not_explain"


@dataclass
class Outcome:
    """A run: its states in order, the seconds to the first, the nodes lost, the refusals that nobody gave."""

    states: list[str]
    seconds: float
    lost: int
    unfounded: int
    nodes: int
    requests: int


async def ran(redis_url: str, namespace: str, fault: str, after: int, seconds: float) -> Outcome:
    """A run whose endpoint has a fault after some answers, for so long; resumed once that is over."""
    failing_since: list[float] = []
    is_mended = False

    def faulty(number: int) -> str:
        if number < after or is_mended:
            return ""
        failing_since.append(time.monotonic())
        return fault if time.monotonic() - failing_since[0] < seconds else ""

    endpoint = ModelEndpoint(fault=faulty, verdict=verdict)
    with endpoint.served():
        oracle = LanguageModelOracle(endpoint.url, "m", key=KEY, timeout_s=10.0)
        server = await oracle.start()
        async with small_world(redis_url, namespace) as world:
            settings = {"target": f"127.0.0.1:{server.port}", "patience_s": PATIENCE_S}
            world.settings["oracles"] = {"fake": settings}
            async with world.sampler() as client:
                begun = time.monotonic()
                run = await client.start_run(HYPOTHESES, corpus="science", oracle="fake", k=12, max_depth=1)
                run = await client.wait(run.id)
                took_s = time.monotonic() - begun
                states = [run.state.name]
                while run.state is values.WorkState.FAILED and len(states) < 4:
                    is_mended = True
                    await client.resume(run.id)
                    run = await client.wait(run.id)
                    states.append(run.state.name)
                pairs = [pair async for pair in client.list_pairs(run.id)]
        await server.stop(0)
        await oracle.close()
    signs: dict[str, set[values.PairSign]] = {}
    for pair in pairs:
        signs.setdefault(pair.query, set()).add(pair.sign)
    silent = sum(found == {values.PairSign.SKIPPED} for found in signs.values())
    refused = {(pair.query, pair.premise) for pair in pairs if pair.sign is values.PairSign.NEGATIVE}
    said = {(query_of(sent), text) for sent in endpoint.sent if not sent.fault for text in sent.refused}
    lost = silent + run.progress.nodes_failed
    return Outcome(states, took_s, lost, len(refused - said), run.progress.nodes_judged, len(endpoint.sent))


def query_of(sent: Sent) -> str:
    """The query that a prompt asks about."""
    found = _QUERY.search(sent.request["messages"][0]["content"])
    assert found is not None
    return str(json.loads(found[1]))


async def judged_of(redis_url: str, kind: str) -> tuple[int, int]:
    """Of 50 hypotheses, those with a verdict on each premise by a kind of model; and the requests it took."""
    endpoint = ModelEndpoint(kind=kind, verdict=verdict)
    with endpoint.served():
        oracle = LanguageModelOracle(endpoint.url, "m", key=KEY, thinking_tokens=THINKING_TOKENS)
        server = await oracle.start()
        async with small_world(redis_url, kind.replace(" ", "")) as world:
            settings = {"target": f"127.0.0.1:{server.port}", "patience_s": PATIENCE_S}
            world.settings["oracles"] = {"fake": settings}
            async with world.sampler() as client:
                run = await client.start_run(HYPOTHESES[:50], corpus="science", oracle="fake", k=12, max_depth=0)
                await client.wait(run.id)
                pairs = [pair async for pair in client.list_pairs(run.id)]
        await server.stop(0)
        await oracle.close()
    undecided = {pair.query for pair in pairs if pair.sign is values.PairSign.SKIPPED}
    return len({pair.query for pair in pairs} - undecided), len(endpoint.sent)


async def measure(rows: Rows, seconds: float, *, only_kinds: bool) -> None:
    """All faults, one run after another, then all kinds of models."""
    logs.configure(log_format="console", level="error", service="sampler", instance="bench")
    with tempfile.TemporaryDirectory(prefix="aeenc-llm-") as scratch:
        redis = start_private_redis(Path(scratch))
        try:
            quiet = await ran(redis.url, "quiet", "", 0, 0.0)
            rows.add("no fault: nodes lost", quiet.lost, "nodes", "0", quiet.lost == 0, f"{quiet.nodes} nodes")
            for kind in KINDS:
                judged, requests = await judged_of(redis.url, kind)
                rows.add(f"{kind}: judged of 50", judged, "nodes", ">= 48", judged >= 48, f"{requests} requests")
            for name, fault in () if only_kinds else FAULTS.items():
                for place, after in (("from the start", 0), ("amid the run", AMID)):
                    for lasts, fault_s in ((f"for {seconds:g} s", seconds), ("for good", float("inf"))):
                        what = f"{name} {place}, {lasts}"
                        found = await ran(redis.url, f"{name}-{place}-{lasts}".replace(" ", ""), fault, after, fault_s)
                        told = f"{' '.join(found.states)}, {found.seconds:.0f} s, {found.requests} requests"
                        beyond = max(found.lost - 1, 0)
                        rows.add(f"{what}: nodes lost beyond one", beyond, "nodes", "0", beyond == 0, told)
                        rows.at_most(f"{what}: refused without a refusal", found.unfounded, "premises", 0, found.nodes)
                        if fault_s == float("inf"):
                            is_told = found.states[0] == "FAILED" and found.states[-1] == "SUCCEEDED"
                            rows.add(f"{what}: failed, then resumed", is_told, "", "yes", is_told, found.lost)
                        if name == "401":
                            rows.at_most(f"{what}: seconds to FAILED", round(found.seconds, 1), "s", 10)
        finally:
            redis.stop()


def main() -> None:
    """Runs all faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=FAULT_S, help="how long a passing fault lasts")
    parser.add_argument("--only-kinds", action="store_true", help="leave the faults out")
    arguments = parser.parse_args()
    rows = Rows("language-model")
    asyncio.run(measure(rows, arguments.seconds, only_kinds=arguments.only_kinds))
    rows.finish()


if __name__ == "__main__":
    main()
