"""Retrieval over HTTP: queries in, premises out, at once or line by line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from aeenc import Fusion
from aeenc.adapters.http import HTTP_STATUS
from aeenc.calls.encoding import Precision
from aeenc.calls.retrieval import FusionMethod, Mode, Retrieved
from aeenc.errors import AeencError, InvalidArgument
from aeenc_gateway.embeddings import json_response
from aeenc_gateway.fleet import Fleet
from aeenc_gateway.operations import Body, Operation, Strings
from aeenc_gateway.problems import problem_of

LINES = "application/x-ndjson"
TOGETHER = 16  # queries of one call while lines are written

Count = Annotated[int, Field(ge=0, lt=2**31)]


class FusionOptions(Body):
    """How the words' ranking and the encoder's become one, and in which order its first premises come."""

    model_config = ConfigDict(extra="forbid", strict=True)

    method: FusionMethod = Field("min_max", description="By scaled scores, or by ranks.")
    lexical_weight: float | None = Field(None, description="The share of words, 0 to 1. Default: the index's.")
    features: dict[str, float] = Field({}, description="Weights of features that order the first premises anew.")


class RetrieveRequest(Body):
    """A query or queries, and the options of `aeenc.IndexClient.retrieve`."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"example": {"corpus": "science", "query": "a magnet attracts an iron nail", "k": 5}},
    )

    corpus: str
    query: str | None = Field(None, description="One query, in place of `queries`.")
    queries: Strings | None = Field(None, description="Queries, in place of `query`.")
    k: Annotated[int, Field(ge=1, lt=2**31)] = Field(10, description="Premises for each query.")
    mode: Mode = Field(
        "dense",
        description="dense: by the encoder; lexical: by words (BM25); hybrid: by both; iterative_lexical: by words, to "
        "which those of the best premises are added round by round.",
    )
    fusion: FusionOptions | None = Field(
        None, description="How mode hybrid joins both rankings; the order of the first."
    )
    label: str | None = Field(None, description="The label of the query encoder. Default: as the encoder chooses.")
    version: str | None = Field(None, description="A version of the query encoder, in place of a label.")
    accepted: Annotated[list[Strings], Field(fail_fast=True)] = Field(
        [], description="Ids of premises accepted so far, one list for each query."
    )
    exclude: Strings = Field([], description="Ids of premises never to return.")
    splits: Strings | None = Field(None, description="Returns premises of these splits, and of none, alone.")
    only_ids: Strings | None = Field(None, description="Returns these premises alone, by id or alias.")
    before_id: str = Field("", description="Returns the premises inserted before this one alone.")
    tags: Strings | None = Field(
        None, description="Returns premises that fit one of these clauses, such as `physics,-draft`."
    )
    generation: str = Field("", description="The generation to search. Default: the active one.")
    exact: bool = Field(False, description="Whether to search exactly, whatever the engine.")
    nprobe: Count = Field(0, description="The lists of an IVF index to visit. 0: as chosen when it was built.")
    ef_search: Count = Field(0, description="The breadth of a search by HNSW. 0: as chosen when it was built.")
    rerank: Count = Field(0, description="How many premises a cross-encoder ranks again, at least k. 0: none.")
    rerank_weight: float = Field(0.0, description="The weight of its score beside the first one. 0: its score alone.")
    rerank_versions: Strings = Field([], description="Several cross-encoders, which rank by the sum of their ranks.")
    prior: float = Field(0.0, description="The share of premises that explained similar hypotheses, 0 to 1.")
    negative_feedback: float = Field(0.0, description="The share of the best premises' direction taken off, 0 to 1.")
    drop_self: bool = Field(True, description="Whether to drop a premise whose text is the query's.")
    truncate: bool = Field(False, description="Whether to cut texts that are too long instead of refusing them.")
    precision: Precision | None = Field(None, description="The precision of encoding. Default: the encoder's.")
    routing_key: str = Field("", description="Calls with the same key go to the same version of a canary.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.query is None) == (self.queries is None):
            raise ValueError("give either query or queries")
        if len(self.accepted) not in {0, len(self.texts)}:
            raise InvalidArgument.field(
                "accepted", f"has {len(self.accepted)} lists for {len(self.texts)} queries; give one for each, or none"
            )
        return self

    @property
    def texts(self) -> list[str]:
        """The queries."""
        return self.queries if self.queries is not None else [self.query or ""]

    def options(self) -> dict[str, Any]:
        """The arguments of `IndexClient.retrieve` but for the texts."""
        fusion = Fusion(**dict(self.fusion)) if self.fusion else None
        return {**{name: value for name, value in self if name not in {"query", "queries"}}, "fusion": fusion}


class Premise(BaseModel):
    """A premise found."""

    id: str
    text: str
    score: float


class Result(BaseModel):
    """The premises for one query, best first."""

    query: str
    premises: list[Premise]


class Retrieval(BaseModel):
    """The premises of each query, and their origin; `model_version` is empty in lexical modes.

    `unknown_splits` and `unknown_tags` are those asked for that no premise has.
    """

    results: list[Result]
    model_version: str
    rerank_versions: list[str]
    generation: str
    unknown_splits: list[str]
    unknown_tags: list[str]


async def retrieve(body: RetrieveRequest, request: Request) -> Response:
    """Retrieves the premises that best explain each query.

    With `Accept: application/x-ndjson` there is one line for each query, as soon as it is known, all from one encoder
    and one generation. If a later query fails, the last line is a problem with `status`.
    """
    fleet: Fleet = request.app.state.fleet
    if LINES not in request.headers.get("accept", ""):
        found = await fleet.index.retrieve(texts=body.texts, **body.options())
        return json_response({"results": _results(body.texts, found), **_origin(found)})
    lines = _lines(fleet, body)
    first = await anext(lines)  # its error has a status of its own
    return StreamingResponse(_after(first, lines), media_type=LINES)


async def _after(first: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    try:
        async for line in lines:
            yield line
    except AeencError as error:
        yield orjson.dumps(
            problem_of(error, "/v1/retrieve", HTTP_STATUS.get(error.code, 500)), option=orjson.OPT_APPEND_NEWLINE
        )


async def _lines(fleet: Fleet, body: RetrieveRequest) -> AsyncIterator[bytes]:
    """Yields the lines of each call together. What answers the first call answers all."""
    options = body.options()
    for start in range(0, max(len(body.texts), 1), TOGETHER):
        texts = body.texts[start : start + TOGETHER]
        options["accepted"] = body.accepted[start : start + TOGETHER]
        found = await fleet.index.retrieve(texts=texts, **options)
        if found.model_version:
            options |= {"version": found.model_version, "label": None}
        options["generation"] = found.generation
        lines = [result | _origin(found) for result in _results(texts, found)]
        yield b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


def _results(texts: list[str], found: Retrieved) -> list[dict[str, Any]]:
    return [{"query": text, "premises": hits} for text, hits in zip(texts, found, strict=True)]


def _origin(found: Retrieved) -> dict[str, Any]:
    return {
        "model_version": found.model_version,
        "rerank_versions": found.rerank_versions,
        "generation": found.generation,
        "unknown_splits": found.unknown_splits,
        "unknown_tags": found.unknown_tags,
    }


OPERATIONS = [
    Operation("POST", "/v1/retrieve", retrieve, "Retrieve premises", RetrieveRequest, Retrieval, lines=LINES),
]
