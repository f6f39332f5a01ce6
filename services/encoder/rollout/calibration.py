"""Which precision computes faster on this CPU: measured with a version's probes, in short steps, when it is loaded.

With VNNI, int8 is 2 to 3 times as fast as single precision; on other CPUs it depends, so nobody has to know.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Mapping, Sequence

from services.encoder.runtime.model import FLOAT32, INT8
from services.encoder.runtime.runners import Runner, Tokens

FASTEST = "fastest"
FASTER = 1.2  # int8 serves from so many times float32's speed on: below, there is little to gain
ROUNDS, BATCH_TEXTS = 5, 8


def fastest(
    runners: Mapping[str, Runner], tokens: Sequence[Tokens]
) -> Generator[None, None, tuple[dict[str, Runner], str]]:
    """Puts the runner first that computes the probes faster here, and says what was measured.

    The runners take turns, so that other work on this machine slows them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(ROUNDS):
        for name, runner in runners.items():
            seconds[name].append(_seconds(runner, tokens))
            yield
    rates = {name: len(tokens) / statistics.median(took) for name, took in seconds.items()}
    ratio = statistics.median(b / a for a, b in zip(seconds[INT8], seconds[FLOAT32], strict=True))
    first = INT8 if ratio >= FASTER else FLOAT32
    ordered = {name: runners[name] for name in sorted(runners, key=lambda name: name != first)}
    said = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    return ordered, f"measured here on one core, texts a second: {said}; int8 serves from {FASTER} times float32"


def _seconds(runner: Runner, tokens: Sequence[Tokens]) -> float:
    """The time that a runner takes for texts, in batches of similar length."""
    ordered = sorted(tokens, key=lambda one: len(one.ids))
    begun = time.perf_counter()
    for start in range(0, len(ordered), BATCH_TEXTS):
        runner.run(ordered[start : start + BATCH_TEXTS])
    return time.perf_counter() - begun
