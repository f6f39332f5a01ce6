"""The odd values of the scan, and what it counts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MIB = 1024 * 1024
HUGE = "x" * (10 * MIB)
SHOWN = 10  # failures of a part that the scan prints in words
TEXTS = {
    "empty": "",
    "blank": " \t\u2003",
    "non-ASCII": "é漢👩‍👩‍👧",
    "NUL": "a\0b",
    "line ends": "a\r\nb\u2028",
    "no path": "../../etc/passwd",
    "10 MiB": HUGE,
}
SURROGATE = "a \ud83d b"
NUMBERS = (0, -1, 2**31, 2**32, 2**63, -(2**63), 2**64, 10**30)
FLOATS = (math.nan, math.inf, -math.inf, -0.5, 1e300, 5e-324)
# What no annotation would let through, but a caller's untyped code does.
PYTHON: dict[str, Any] = {
    **TEXTS,
    "surrogate": SURROGATE,
    **{str(number): number for number in (*NUMBERS, *FLOATS)},
    "True": True,
    "None": None,
    "bytes": b"\xff\xfe",
    "object": object(),
    "class": dict,
    "empty list": [],
    "list of None": [None],
    "list of surrogate": [SURROGATE],
    "list of numbers": [1, -1],
    "list of lists": [["iron"], [SURROGATE], 5],
    "list of pairs": [("iron", "ice"), ("iron", None)],
    "mapping": {"iron": 1.0, SURROGATE: "x", 5: None},
    "set": {"iron"},
}
FEW = ("empty", "surrogate", "-1", str(2**63), "nan", "None", "object", "list of None")


@dataclass
class Scanned:
    """How the calls of one part ended: their number, what they ended with, and those that must not end so."""

    calls: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def ended(self, how: str, failure: str = "") -> None:
        """Counts a call."""
        self.calls += 1
        self.endings[how] += 1
        if failure:
            self.failures.append(failure)

    def __str__(self) -> str:
        kinds = Counter(one.partition(" | ")[0] for one in self.failures)
        first = {one.partition(" | ")[0]: one for one in reversed(self.failures)}
        lines = [f"  {count:4} x {first[kind][:400]}" for kind, count in kinds.most_common()]
        return "\n".join([f"{self.calls:,} calls: {dict(self.endings.most_common())}", *lines])
