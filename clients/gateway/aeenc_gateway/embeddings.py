"""OpenAI's embeddings and models, as OpenAI's own clients call them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.requests import Request
from starlette.responses import Response

from aeenc import Encoded
from aeenc.calls.encoding import Precision
from aeenc.errors import InvalidArgument, Unavailable
from aeenc_gateway.fleet import PREMISE, Fleet
from aeenc_gateway.operations import Body, Operation, Strings

MAX_INPUTS = 2048  # as OpenAI takes, whose clients make calls of so many
BATCH = 1024  # most that the encoder takes at once
_NAMED_BY_MODEL = {"label", "version", "role"}  # by which the SDK's `encode` has what `model` names here


def as_texts(value: Any) -> Any:
    """Makes a list of one text. Raises for token ids, which belong to another model's tokenizer."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and any(isinstance(one, int | list) for one in value):
        raise PydanticCustomError(
            "token_ids",
            "holds token ids of another model's tokenizer; send texts (in LangChain: check_embedding_ctx_length=False)",
        )
    return value


_ONE_OR_MANY = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
Texts = Annotated[Strings, BeforeValidator(as_texts), WithJsonSchema(_ONE_OR_MANY)]


class EmbeddingRequest(Body):
    """Texts to embed."""

    model_config = ConfigDict(
        extra="allow",  # clients of OpenAI send more than is used here
        json_schema_extra={"example": {"input": ["iron is a metal"], "model": "stable"}},
    )

    input: Texts = Field(max_length=MAX_INPUTS, description="One text, or several. No token ids.")
    model: str | None = Field(
        "", description="A label or a version of a query encoder, or `premise`. Default: as the encoder chooses."
    )
    encoding_format: Literal["float", "base64"] | None = Field("float", description="base64: float32, little-endian.")
    dimensions: int | None = Field(None, description="The full length alone, which the index knows.")
    user: str | None = Field("", description="The routing key: calls with the same go to the same version of a canary.")
    truncate: bool = Field(False, description="Whether to cut texts that are too long instead of refusing them.")
    precision: Precision | None = Field(None, description="The precision of encoding. Default: the encoder's.")
    space_id: str = Field("", description="The space of the vectors. Default: the encoder's.")


class Embedding(BaseModel):
    """The unit vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """The tokens computed, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """The vectors in the order of the texts. `model` is the version that computed all of them."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    space_id: str
    truncated: int


class Model(BaseModel):
    """A name for `model`. `created` is always 0."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(BaseModel):
    """Labels, versions, and `premise`."""

    object: Literal["list"]
    data: list[Model]


def must_be_full(dimensions: int | None, encoded: Encoded) -> None:
    """Raises InvalidArgument for another length than that of the vectors."""
    full = encoded.vectors.shape[1]
    if dimensions not in (None, full):
        problem = f"is {dimensions}; leave it out: the index knows vectors of the full length {full} alone"
        raise InvalidArgument.field("dimensions", problem)


async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Embeds texts as queries, or with model `premise` as premises."""
    if named := _NAMED_BY_MODEL & (body.model_extra or {}).keys():
        raise InvalidArgument.field(
            min(named), "is not a field of this route; put the label, the version or `premise` into `model`"
        )
    fleet: Fleet = request.app.state.fleet
    options: dict[str, Any] = {"truncate": body.truncate, "precision": body.precision, "space_id": body.space_id}
    model = body.model or ""
    found = await fleet.encode(body.input[:BATCH], model, routing_key=body.user or "", **options)
    must_be_full(body.dimensions, found)
    same: dict[str, Any] = {"role": "premise"} if model == PREMISE else {"version": found.model_version}
    for start in range(BATCH, len(body.input), BATCH):
        more = await fleet.encoder.encode(body.input[start : start + BATCH], **same, **options)
        if more.model_version != found.model_version:
            raise Unavailable("the encoder's version changed between two batches of the call; send it again")
        found = replace(
            found,
            vectors=np.concatenate([found.vectors, more.vectors]),
            tokens=found.tokens + more.tokens,
            truncated=found.truncated + more.truncated,
        )
    rows: Any = found.vectors
    if body.encoding_format == "base64":
        rows = [base64.b64encode(row).decode() for row in np.ascontiguousarray(rows, dtype="<f4")]
    return json_response(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(rows)],
            "model": found.model_version,
            "usage": {"prompt_tokens": found.tokens, "total_tokens": found.tokens},
            "space_id": found.space_id,
            "truncated": found.truncated,
        }
    )


async def models(request: Request) -> Response:
    """Lists what `model` of an embedding may be, in the encoder's default space."""
    fleet: Fleet = request.app.state.fleet
    info = await fleet.encoder.info()
    loaded = [one for one in info.versions if one.space_id == info.default_space_id]
    labels = {one.name for one in info.labels if one.space_id == info.default_space_id}
    names = [*sorted(labels), PREMISE, *(one.version for one in loaded)]
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "aeenc"} for name in names]
    return json_response({"object": "list", "data": data})


def json_response(content: Any) -> Response:
    """Writes numbers of numpy as they are: float32 in its shortest form."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


OPERATIONS = [
    Operation("POST", "/v1/embeddings", embeddings, "Embed texts (OpenAI)", EmbeddingRequest, Embeddings),
    Operation("GET", "/v1/models", models, "List models (OpenAI)", answer=Models),
]
