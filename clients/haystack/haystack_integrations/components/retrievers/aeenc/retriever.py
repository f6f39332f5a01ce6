"""Premises as Haystack documents. Settings and calls are those of `aeenc.adapters.premises`.

Annotations are values here, not text: Haystack reads the types of a component's sockets from them.
"""

from typing import Any, Self, Unpack

from haystack import Document, component, default_to_dict
from haystack.utils import Secret

from aeenc import Fusion
from aeenc.adapters.premises import FoundPremise, PremiseKeywords, PremiseRetriever, known, refuse_change


@component
class AeencRetriever:
    """Retrieves the premises of `corpus` that best explain a query, best first.

    A document is one premise: `id`, `content` (its text), `score`, and in `meta` its `score` and `rank` (from 1), the
    `model_version` that encoded the query ("" in lexical modes), the `rerank_versions` that ranked again, the corpus'
    `generation`, `unknown_splits` and `unknown_tags`, of which a warning tells as well.

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
        token: Secret | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        tls: bool | None = None,
        **options: Unpack[PremiseKeywords],
    ) -> None:
        place: dict[str, Any] = {"index": index, "ca": ca, "cert": cert, "key": key, "tls": tls}
        self._given = {"corpus": corpus, "token": token, **place}
        self._options = known(options)
        self._premises = PremiseRetriever(corpus, token=token.resolve_value() if token else None, **place)

    def __setattr__(self, name: str, value: object) -> None:
        refuse_change(name)
        object.__setattr__(self, name, value)

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        k: int | None = None,
        accepted: list[str] | None = None,
        exclude: list[str] | None = None,
        splits: list[str] | None = None,
    ) -> dict[str, list[Document]]:
        """Retrieves for one query; what is not None replaces the component's option."""
        changes = {"k": k, "accepted": accepted, "exclude": exclude, "splits": splits}
        return {"documents": _documents(self._premises.retrieve(query, self._changed(changes)))}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query: str,
        k: int | None = None,
        accepted: list[str] | None = None,
        exclude: list[str] | None = None,
        splits: list[str] | None = None,
    ) -> dict[str, list[Document]]:
        """Does the same without blocking the event loop."""
        changes = {"k": k, "accepted": accepted, "exclude": exclude, "splits": splits}
        return {"documents": _documents(await self._premises.retrieve_async(query, self._changed(changes)))}

    def close(self) -> None:
        """Closes the connection; the next call opens another."""
        self._premises.close()

    def to_dict(self) -> dict[str, Any]:
        """Writes the component for a pipeline's file. A token is written as the name of its variable, or refused."""
        options = dict(self._options)
        if fusion := options.get("fusion"):
            options["fusion"] = {**vars(fusion), "features": dict(fusion.features)}
        token = self._given["token"]
        given = {**self._given, "token": token.to_dict() if isinstance(token, Secret) else None}
        return default_to_dict(self, **given, **options)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Reads what `to_dict` wrote."""
        given = dict(data["init_parameters"])
        if token := given.get("token"):
            given["token"] = Secret.from_dict(token)
        if fusion := given.get("fusion"):
            given["fusion"] = Fusion(**fusion)
        return cls(**given)

    def _changed(self, changes: dict[str, Any]) -> dict[str, Any]:
        return {**self._options, **{name: value for name, value in changes.items() if value is not None}}


def _documents(premises: list[FoundPremise]) -> list[Document]:
    return [Document(id=one.id, content=one.text, score=one.score, meta=one.metadata()) for one in premises]
