"""Routes of Hugging Face's text-embeddings-inference (TEI): embed, rerank, info, health."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field, RootModel
from starlette.requests import Request
from starlette.responses import Response

from aeenc.adapters.sentences import role_of
from aeenc_gateway.embeddings import Texts, json_response, must_be_full
from aeenc_gateway.fleet import PREMISE, Fleet
from aeenc_gateway.operations import Body, Operation, Strings


class EmbedRequest(Body):
    """Texts to embed. Vectors have unit length also without `normalize`."""

    inputs: Texts = Field(description="One text, or several. No token ids.")
    truncate: bool | None = Field(None, description="Whether to cut texts that are too long instead of refusing them.")
    truncation_direction: Literal["Right", "right"] = Field("Right", description="The end that is cut.")
    prompt_name: str | None = Field(None, description="`query` (default), or `document` for texts that are searched.")
    normalize: bool = Field(True, description="Changes nothing.")
    dimensions: int | None = Field(None, description="The full length alone, which the index knows.")


class RerankRequest(Body):
    """A query and the texts to put in order."""

    query: str
    texts: Strings
    raw_scores: bool = Field(False, description="The cross-encoder's own scores instead of ones between 0 and 1.")
    return_text: bool = False
    truncate: bool | None = Field(None, description="Whether to cut pairs that are too long instead of refusing them.")
    truncation_direction: Literal["Right", "right"] = Field("Right", description="The end that is cut.")


class Rank(BaseModel):
    """A text's place in the request, and its score."""

    index: int
    score: float
    text: str | None = None


class Vectors(RootModel[list[list[float]]]):
    """One unit vector for each text."""


class Ranks(RootModel[list[Rank]]):
    """The texts, best first."""


class Info(BaseModel):
    """The encoder: `model_id` is the version of label `stable`, `model_dtype` the precision of its queries."""

    model_id: str
    model_dtype: str
    max_input_length: int
    max_client_batch_size: int
    version: str
    space_id: str


async def embed(body: EmbedRequest, request: Request) -> Response:
    """Embeds texts: one unit vector for each."""
    fleet: Fleet = request.app.state.fleet
    model = PREMISE if role_of(body.prompt_name or "query") == "premise" else ""
    found = await fleet.encode(body.inputs, model, truncate=bool(body.truncate))
    must_be_full(body.dimensions, found)
    return json_response(np.ascontiguousarray(found.vectors))


async def rerank(body: RerankRequest, request: Request) -> Response:
    """Ranks texts for a query by the cross-encoder, best first.

    Several that `stable` names rank by the sum of their ranks, as in retrieval. The raw score is minus that sum, else
    the share of texts, as a mean over the cross-encoders, that each ranks no higher.
    """
    fleet: Fleet = request.app.state.fleet
    score = partial(fleet.encoder.score, body.query, body.texts, truncate=bool(body.truncate))
    first = await score(first_of_ensemble=True)
    raw = first.scores
    scores = 1.0 / (1.0 + np.exp(-raw))
    if first.ensemble:
        others = await asyncio.gather(*(score(version=version) for version in first.ensemble[1:]))
        ranks = [np.argsort(np.argsort(-one.scores, kind="stable")) + 1 for one in (first, *others)]
        raw = -np.stack(ranks).sum(axis=0, dtype=np.float32)
        scores = 1 + (1 + raw / len(ranks)) / len(raw)
    chosen = raw if body.raw_scores else scores
    ordered: list[dict[str, Any]] = [
        {"index": int(n), "score": chosen[n]} | ({"text": body.texts[n]} if body.return_text else {})
        for n in np.argsort(-raw, kind="stable")
    ]
    return json_response(ordered)


async def info(request: Request) -> Response:
    """Describes the encoder."""
    fleet: Fleet = request.app.state.fleet
    served = await fleet.encoder.info()
    here = [one for one in served.labels if one.space_id == served.default_space_id and one.name == "stable"]
    stable = [one for one in served.versions if any(one.version in label.versions for label in here)]
    limits = served.service.limits
    return json_response(
        {
            "model_id": "".join(one.version for one in stable),
            "model_dtype": "".join(one.precisions[0].name.lower() for one in stable if one.precisions),
            "max_input_length": limits.tokens,
            "max_client_batch_size": limits.items,
            "version": served.service.software_version,
            "space_id": served.default_space_id,
        }
    )


async def health(request: Request) -> Response:
    """Answers 200 while the encoder serves, without a token too."""
    fleet: Fleet = request.app.state.fleet
    await fleet.check()
    return Response()


OPERATIONS = [
    Operation("POST", "/embed", embed, "Embed texts (TEI)", EmbedRequest, Vectors),
    Operation("POST", "/rerank", rerank, "Rank texts (TEI)", RerankRequest, Ranks),
    Operation("GET", "/info", info, "Describe the encoder (TEI)", answer=Info),
    Operation("GET", "/health", health, "Check the encoder (TEI)"),
]
