"""What callers of an index may rely on: what was acknowledged, and what was under way when the index was killed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

Premise = tuple[tuple[str, ...], str]  # all its ids, and its text


@dataclass
class Build:
    """One build as its caller knows it: what is streamed, what must come out, what has been acknowledged."""

    request_id: str
    sent: list[tuple[str, str]]
    content: list[Premise]
    base: str = ""
    deleted_ids: tuple[str, ...] = ()
    activate: bool = False
    durable: int = 0  # streamed premises acknowledged as on disk
    durable_rows: int = 0  # rows of vectors acknowledged so

    def acknowledged_texts(self) -> set[str]:
        """New texts whose vectors were acknowledged: encoding them again would be work lost."""
        return {text for _, text in self.content[: self.durable_rows]} & {text for _, text in self.sent}


@dataclass
class CorpusModel:
    """The generations of one corpus, by acknowledgements."""

    name: str
    generations: dict[str, list[Premise]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    active: str | None = None
    build: Build | None = None  # under way, as are the next two
    activating: str | None = None
    deleting: str | None = None
    _numbers: int = 0

    def plan_build(self, rng: random.Random) -> Build:
        """A build from scratch or from a base, with premises that were never there, some of them twice."""
        self._numbers += 1
        name = f"{self.name}-{self._numbers}"
        sent = [(f"{name}-{n}", f"fact {n} of {name}") for n in range(rng.randint(40, 160))]
        sent += [(f"{one}-again", text) for one, text in rng.sample(sent, 3)]
        build = Build(f"request {name}", sent, [], activate=rng.random() < 0.3)
        if self.generations and rng.random() < 0.5:
            build.base = rng.choice(sorted(self.generations))
            known = [one for ids, _ in self.generations[build.base] for one in ids]
            build.deleted_ids = tuple(rng.sample(known, min(8, len(known))))
        build.content = folded(self.generations.get(build.base, []), set(build.deleted_ids), sent)
        return build

    def choose(self, rng: random.Random) -> str:
        """What to do next: few generations are built, many pruned."""
        if self.build is not None or len(self.generations) < 2:
            return "build"
        idle = len(self.generations) > 2 or self.active is None
        return rng.choice(["build", "activate", "activate", "search"] + ["delete"] * (4 if idle else 0))

    def acknowledge_build(self, generation_id: str) -> None:
        """The build under way has ended with a generation."""
        assert self.build is not None
        self.generations[generation_id] = self.build.content
        if self.build.activate:
            self.active = generation_id
        self.build = None


def folded(base: list[Premise], deleted: set[str], sent: list[tuple[str, str]]) -> list[Premise]:
    """A base without deleted ids, then new premises; those of one text are one premise."""
    by_text: dict[str, tuple[str, ...]] = {}
    for ids, text in base:
        if left := tuple(one for one in ids if one not in deleted):
            by_text[text] = left
    for one, text in sent:
        by_text[text] = (*by_text.get(text, ()), one)
    return [(ids, text) for text, ids in by_text.items()]
