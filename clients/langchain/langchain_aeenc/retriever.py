"""Premises as LangChain documents. Settings and calls are those of `aeenc.adapters.premises`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, PrivateAttr, SecretStr

from aeenc import Fusion
from aeenc.adapters.premises import OPTIONS, FoundPremise, PremiseRetriever
from aeenc.calls.encoding import Precision
from aeenc.calls.retrieval import Mode


class AeencRetriever(BaseRetriever):
    """Retrieves the `k` premises of `corpus` that best explain a query, best first.

    A document is one premise: `id`, `page_content` (its text), and in `metadata` its `score` and `rank` (from 1), the
    `model_version` that encoded the query ("" in lexical modes), the `rerank_versions` that ranked again, the corpus'
    `generation`, `unknown_splits` and `unknown_tags`, of which a warning tells as well.

    `index` ("host:port"), `token`, `ca`, `cert`, `key`, `tls` come from AEENC_INDEX, AEENC_TOKEN, AEENC_CA, AEENC_CERT,
    AEENC_KEY, AEENC_TLS or a running fleet's `.aeenc/fleet.json` unless given. All other fields are the options of
    `aeenc.IndexClient.retrieve`; `accepted` are the ids of premises accepted for the query. `invoke(query, k=3,
    accepted=[…])` changes options for one call.
    Raises the classes of `aeenc.errors`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    corpus: str
    index: str | None = None
    token: SecretStr | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    tls: bool | None = None

    k: int = 10
    label: str | None = None
    version: str | None = None
    mode: Mode = "dense"
    fusion: Fusion | None = None
    accepted: Sequence[str] = ()
    prior: float = 0.0
    negative_feedback: float = 0.0
    rerank: int = 0
    rerank_weight: float = 0.0
    rerank_versions: Sequence[str] = ()
    drop_self: bool = True
    exclude: Sequence[str] = ()
    splits: Sequence[str] | None = None
    only_ids: Sequence[str] | None = None
    before_id: str = ""
    tags: list[str] | None = None  # as those of BaseRetriever, whose traces carry them
    generation: str = ""
    truncate: bool = False
    precision: Precision | None = None
    routing_key: str = ""
    exact: bool = False
    nprobe: int = 0
    ef_search: int = 0
    timeout_s: float | None = None

    _opened: dict[tuple[Any, ...], PremiseRetriever] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Reads the settings; the connection opens at the first call."""
        super().model_post_init(context)
        _ = self._premises

    @property
    def _premises(self) -> PremiseRetriever:
        """The retriever of what the fields say now: they may be set anew, or differ in a copy."""
        token = self.token.get_secret_value() if self.token else None
        place: dict[str, Any] = {
            "index": self.index,
            "token": token,
            "ca": self.ca,
            "cert": self.cert,
            "key": self.key,
            "tls": self.tls,
        }
        asked = (self.corpus, *place.values())
        if asked not in self._opened:
            self._opened[asked] = PremiseRetriever(self.corpus, **place)
        return self._opened[asked]

    def close(self) -> None:
        """Closes the connections; the next call opens another."""
        for premises in self._opened.values():
            premises.close()

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **changes: Any
    ) -> list[Document]:
        return _documents(self._premises.retrieve(query, self._options(changes)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **changes: Any
    ) -> list[Document]:
        return _documents(await self._premises.retrieve_async(query, self._options(changes)))

    def _options(self, changes: dict[str, Any]) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in OPTIONS}, **changes}


def _documents(premises: list[FoundPremise]) -> list[Document]:
    return [Document(id=one.id, page_content=one.text, metadata=one.metadata()) for one in premises]
