"""The pairings of two releases that a rolling upgrade meets, and the order of one. Nothing is run here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SDK = "SDK"
PARTS = ("encoder", "index", "sampler", "trainer", SDK)  # in the order of an upgrade: who is asked before who asks


@dataclass(frozen=True)
class Pairing:
    """A fleet and its callers: the `earlier` parts are of the earlier release, all others of today's."""

    name: str
    earlier: frozenset[str]

    def release_of(self, part: str) -> str:
        """The release of a service, or of the SDK."""
        return "earlier" if part in self.earlier else "today"


def pairings() -> Iterator[Pairing]:
    """Each part alone behind all others, then alone ahead: so each meets each other in both directions."""
    for part in PARTS:
        yield Pairing(f"{part} behind", frozenset({part}))
        yield Pairing(f"{part} ahead", frozenset(PARTS) - {part})


def upgrade() -> Iterator[tuple[str, Pairing]]:
    """The parts in the order of an upgrade, each with the pairing that it leads to."""
    left = set(PARTS)
    for part in PARTS:
        left.discard(part)
        yield part, Pairing(f"{part} upgraded", frozenset(left))
