"""One text in, its premises out, as retrievers of frameworks ask: blocking, or awaited in any event loop.

`clients/langchain`, `clients/llama-index` and `clients/haystack` turn the premises into their own documents.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

from aeenc.calls.inputs import refuse_single_text, refuse_unknown
from aeenc.calls.retrieval import CALL_OPTIONS, Retrieved, RetrieveKeywords
from aeenc.encoder import EncoderClient
from aeenc.errors import InvalidArgument
from aeenc.index import IndexClient
from aeenc.transport.channel import Channel
from aeenc.transport.sync import awaited, run
from aeenc.transport.targets import ConnectOptions, Targets


class PremiseKeywords(RetrieveKeywords, total=False):
    """The options of `IndexClient.retrieve`, which documents them; `accepted` are the ids for the one text."""

    accepted: Sequence[str]
    timeout_s: float | None


OPTIONS = CALL_OPTIONS | {"accepted", "timeout_s"}
C = TypeVar("C", IndexClient, EncoderClient)
_PLACE = {"corpus", *ConnectOptions.__annotations__}


@dataclass(frozen=True)
class FoundPremise:
    """One premise of an answer. `rank` counts from 1.

    `model_version` and `rerank_versions` are empty where no such model took part; `unknown_splits` and `unknown_tags`
    are those asked for that no premise of the corpus has.
    """

    id: str
    text: str
    score: float
    rank: int
    model_version: str
    rerank_versions: tuple[str, ...]
    generation: str
    unknown_splits: tuple[str, ...]
    unknown_tags: tuple[str, ...]

    def metadata(self) -> dict[str, Any]:
        """Returns the origin of this premise, as all integrations put it into their documents."""
        fields = {name: value for name, value in vars(self).items() if name not in {"id", "text"}}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


class ConnectsLater(Generic[C]):
    """Base of what blocks and has one client, `_kind` of `_service`: it connects at the first call.

    A copy, in this process or another, connects by itself. `_connected` runs on the loop of the blocking clients, to
    which the channel belongs.
    """

    _service: str
    _kind: Callable[[Channel], C]
    _targets: Targets
    _client: C | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}

    def close(self) -> None:
        """Closes the connection; the next call opens another."""
        run(self._close())

    def _connected(self) -> C:
        if self._client is None:
            self._client = self._kind(self._targets.channel(self._service))
        return self._client

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.channel.close()


class PremiseRetriever(ConnectsLater[IndexClient]):
    """Finds the premises of one text at a time in one corpus. Connects at the first call, reads settings at once.

    `index`, `token`, `ca` and the others of `place` are those of `aeenc.connect`, found as there where they are None.
    Warns of splits and tags that no premise has; raises InvalidArgument for options that `IndexClient.retrieve` lacks.
    """

    _service, _kind = "index", IndexClient

    def __init__(
        self,
        corpus: str,
        *,
        options: Mapping[str, Any] | None = None,
        **place: Unpack[ConnectOptions],
    ) -> None:
        self._corpus = corpus
        self._options = known(options or {})
        self._targets = Targets.find(**place)

    def __setattr__(self, name: str, value: object) -> None:
        refuse_change(name)
        object.__setattr__(self, name, value)

    def retrieve(self, text: str, changes: Mapping[str, Any] | None = None) -> list[FoundPremise]:
        """Finds the premises that best explain `text`, best first; `changes` are options of this call alone."""
        return self._premises_of(run(self._retrieve(text, known(changes or {}))))

    async def retrieve_async(self, text: str, changes: Mapping[str, Any] | None = None) -> list[FoundPremise]:
        """Does the same without blocking the event loop that awaits it."""
        return self._premises_of(await awaited(self._retrieve(text, known(changes or {}))))

    async def _retrieve(self, text: str, changes: Mapping[str, Any]) -> Retrieved:
        """Runs on the loop of the blocking clients, to which the channel belongs."""
        options = {**self._options, **changes}
        if accepted := options.pop("accepted", ()):
            options["accepted"] = [list(accepted)]
        return await self._connected().retrieve(self._corpus, [text], **options)

    def _premises_of(self, found: Retrieved) -> list[FoundPremise]:
        unknown = found.unknown_splits, found.unknown_tags
        for what, names in zip(("splits", "tags"), unknown, strict=True):
            if names:
                named = ", ".join(map(repr, names))
                warnings.warn(
                    f"{what}: no premise of corpus {self._corpus!r} has {named}; is it misspelt?", stacklevel=3
                )
        origin = (found.model_version, found.rerank_versions, found.generation, *unknown)
        return [FoundPremise(hit.id, hit.text, hit.score, rank, *origin) for rank, hit in enumerate(found[0], start=1)]


def refuse_change(name: str) -> None:
    """Raises InvalidArgument for an attribute that a retriever read when it was made, and would ignore later."""
    if name in OPTIONS or name in _PLACE:
        raise InvalidArgument.field(name, "was read when the retriever was made; make another with the new value")


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options. Raises InvalidArgument for one that there is not, and for a string in place of ids."""
    refuse_unknown(options, OPTIONS)
    for name in ("accepted", "exclude", "splits", "only_ids", "tags", "rerank_versions"):
        refuse_single_text(options.get(name), name)
    return dict(options)
