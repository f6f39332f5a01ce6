"""What the index's calls ask of a back end. Two give it: files with FAISS in this process, and collections in a Milvus.

Answers, generations and errors are the same values from both, so that the servicer and its callers cannot tell them
apart but by the name of the engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from services.corpus.generation import PremiseRecord
from services.store.artifacts import Artifact

if TYPE_CHECKING:
    from services.index.building import BuildSpec, Progress
    from services.index.catalogue import Activation
    from services.index.explanations import Explanation
    from services.index.queries import Scope, TextQuery
    from services.index.retrieval import Answer
    from services.index.search import Effort


class PremiseLookup(Protocol):
    """Premises by ordinal; it may have those of one answer only."""

    def __getitem__(self, ordinal: int, /) -> PremiseRecord: ...


class Facts(Protocol):
    """What is known of a generation."""

    @property
    def artifact(self) -> Artifact: ...
    @property
    def id(self) -> str: ...
    @property
    def corpus(self) -> str: ...
    @property
    def space_id(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def premises(self) -> PremiseLookup: ...


class Searched(Protocol):
    """A generation that an answer names, with the premises that were found."""

    @property
    def id(self) -> str: ...
    @property
    def generation(self) -> Facts: ...


class Readable(Searched, Protocol):
    """A generation whose premises can be looked up and listed."""

    @property
    def rows(self) -> int: ...

    async def find(self, ids: Iterable[str]) -> list[PremiseRecord]:
        """The premises of ids or aliases, in that order. Raises NotFound naming the first unknown ones."""

    async def page(self, start: int, count: int) -> list[PremiseRecord]:
        """At most `count` premises from the ordinal `start` on, in the order of insertion."""


class Generations(Protocol):
    """The corpora, their generations, and the switch between these."""

    def corpora(self) -> Sequence[tuple[str, Searched | None]]: ...
    def active_id(self, corpus: str) -> str | None: ...
    async def resolve(self, corpus: str, generation_id: str = "") -> Readable: ...
    async def activate(self, corpus: str, generation_id: str, *, expected: str | None = None) -> Activation: ...
    async def generations(self, corpus: str) -> list[Artifact]: ...
    async def delete(self, corpus: str, generation_id: str) -> None: ...
    def check_known(self, corpus: str) -> None: ...


class Answering(Protocol):
    """Search and Retrieve."""

    async def search(
        self,
        scope: Scope,
        vectors: NDArray[np.float32],
        space_id: str,
        *,
        effort: Effort = ...,
        deadline_s: float | None = None,
    ) -> Answer: ...

    async def retrieve(self, query: TextQuery, *, deadline_s: float | None = None) -> Answer: ...


class Building(Protocol):
    """BuildGeneration."""

    def build(
        self, spec: BuildSpec, chunks: AsyncIterator[Sequence[PremiseRecord]]
    ) -> AsyncGenerator[Progress, None]: ...


class Explaining(Protocol):
    """PutExplanations."""

    async def put(self, corpus: str, explanations: Iterable[Explanation], *, replace: bool) -> int: ...


@dataclass(frozen=True)
class Backend:
    """One back end, not yet opened: `load` opens it once the port is bound, `close` ends it."""

    catalogue: Generations
    retrieval: Answering
    builder: Building
    explanations: Explaining
    load: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]
