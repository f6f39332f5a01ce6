"""Premises as LlamaIndex nodes. Settings and calls are those of `aeenc.adapters.premises`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Self, Unpack

from llama_index.core.callbacks import CallbackManager
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from aeenc.adapters.premises import FoundPremise, PremiseKeywords, PremiseRetriever, known, refuse_change


class AeencRetriever(BaseRetriever):
    """Retrieves the premises of `corpus` that best explain a query, best first.

    A node is one premise: its id, its text, and in `metadata` its `score` and `rank` (from 1), the `model_version` that
    encoded the query ("" in lexical modes), the `rerank_versions` that ranked again, the corpus' `generation`,
    `unknown_splits` and `unknown_tags`, of which a warning tells as well. A language model is shown the text alone.

    `index` ("host:port"), `token`, `ca`, `cert`, `key`, `tls` come from AEENC_INDEX, AEENC_TOKEN, AEENC_CA, AEENC_CERT,
    AEENC_KEY, AEENC_TLS or a running fleet's `.aeenc/fleet.json` unless given. `options` are those of
    `aeenc.IndexClient.retrieve`; `accepted` are the ids of premises accepted for the query. Attributes of
    these names cannot be set later. Raises the classes of `aeenc.errors`.
    """

    def __init__(
        self,
        corpus: str,
        *,
        index: str | None = None,
        token: str | None = None,
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
        tls: bool | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
        **options: Unpack[PremiseKeywords],
    ) -> None:
        super().__init__(callback_manager=callback_manager, verbose=verbose)
        self._options = known(options)
        self._premises = PremiseRetriever(corpus, index=index, token=token, ca=ca, cert=cert, key=key, tls=tls)

    def __setattr__(self, name: str, value: object) -> None:
        refuse_change(name)
        object.__setattr__(self, name, value)

    def with_options(self, **changes: Unpack[PremiseKeywords]) -> Self:
        """Returns a retriever over the same connection with other options, such as `accepted` for one query."""
        changed = copy.copy(self)
        changed._options = {**self._options, **known(changes)}  # noqa: SLF001
        return changed

    def close(self) -> None:
        """Closes the connection; the next call opens another."""
        self._premises.close()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self._premises.retrieve(query_bundle.query_str, self._options))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(await self._premises.retrieve_async(query_bundle.query_str, self._options))


def _nodes(premises: list[FoundPremise]) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(
                id_=one.id,
                text=one.text,
                metadata=one.metadata(),
                excluded_embed_metadata_keys=list(one.metadata()),
                excluded_llm_metadata_keys=list(one.metadata()),
            ),
            score=one.score,
        )
        for one in premises
    ]
