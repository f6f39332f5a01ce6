"""Which precision computes fastest on this CPU: measured with a version's probes, in short steps, when it is loaded.

int8 is fast with VNNI or AMX, bfloat16 with AVX-512 BF16 or AMX, and on other CPUs it depends, so nobody has to know.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Mapping, Sequence

from services.encoder.runtime.model import FLOAT32
from services.encoder.runtime.runners import Runner, Tokens

AUTO = "auto"
GAIN = 1.03  # a lower precision serves from so many times float32's speed on: below, it may be chance
ROUNDS, BATCH_TOKENS = 5, 256

Rates = dict[str, float]  # texts a second on one core, by precision


class Calibration:
    """Speeds of precisions, measured once for all models of the same sizes, so that swaps stay quick and agree."""

    def __init__(self) -> None:
        self._known: dict[object, Rates] = {}

    def rates(
        self, sizes: object, runners: Mapping[str, Runner], tokens: Sequence[Tokens]
    ) -> Generator[None, None, Rates]:
        """Returns the speed of each runner for texts; `sizes` tells models of different cost apart."""
        key = (sizes, tuple(runners))
        if key not in self._known:
            self._known[key] = yield from measured(runners, tokens)
        return self._known[key]


def measured(runners: Mapping[str, Runner], tokens: Sequence[Tokens]) -> Generator[None, None, Rates]:
    """Measures runners in turns, so that other work on this machine slows them alike.

    They compute one batch as it is served, of the shortest texts, since facts and queries are short.
    """
    batch: list[Tokens] = []
    for one in sorted(tokens, key=lambda one: len(one.ids)):
        if not batch or len(one.ids) * (len(batch) + 1) <= BATCH_TOKENS:
            batch.append(one)
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(ROUNDS):
        for name, runner in runners.items():
            seconds[name].append(_seconds(runner, batch))
            yield
    return {name: len(batch) / statistics.median(took) for name, took in seconds.items()}


def fastest(rates: Rates) -> str:
    """Returns the precision to serve."""
    best = max(rates, key=lambda name: rates[name])
    return best if rates[best] >= GAIN * rates[FLOAT32] else FLOAT32


def told(rates: Rates) -> str:
    """Says in words what was measured."""
    figures = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    return f"measured here on one core, texts a second: {figures}"


def _seconds(runner: Runner, batch: Sequence[Tokens]) -> float:
    """The processor time that a runner takes for a batch.

    All runners compute in the thread that calls them; its time passes only while it has a processor.
    """
    begun = time.thread_time()
    runner.run(batch)
    return time.thread_time() - begun
