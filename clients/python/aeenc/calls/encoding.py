"""Encoding as values: options, embeddings and scores, and their messages.

Opens no connection; `aeenc.encoder` calls, `aeenc.calls.bulk` streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from aeenc import values, vectors
from aeenc.calls.inputs import refuse_unknown
from aeenc.errors import InvalidArgument
from aeenc.v1 import encoder_pb2, types_pb2
from aeenc.values.writing import message, mirrored, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Role = Literal["query", "premise"]
Precision = Literal["float32", "float16", "int8"]
Lane = Literal["interactive", "bulk"]


@dataclass(frozen=True, eq=False)  # an array has no one answer to ==
class Encoded:
    """The embeddings of one batch.

    `vectors` is (n, dim) float32, rows of unit length; `model_version` computed all of them, in `precision` ("": one
    that this SDK does not know); `truncated` texts were cut; `tokens` were computed in all.
    """

    vectors: NDArray[np.float32]
    model_version: str
    space_id: str
    timings: values.Timings
    truncated: int
    precision: str = ""
    tokens: int = 0

    @classmethod
    def of(cls, response: encoder_pb2.EncodeResponse) -> Encoded:
        """Reads the encoder's answer."""
        return cls(
            vectors=vectors.from_proto(response.embeddings),
            model_version=response.model_version,
            space_id=response.space_id,
            timings=values.Timings.from_message(response.timings),
            truncated=response.truncated,
            precision=precision_name(response.precision),
            tokens=response.tokens,
        )


@dataclass(frozen=True, eq=False)  # an array has no one answer to ==
class Scored:
    """The `scores` (n,) of premises, float32, larger is better; `truncated` pairs were cut.

    `ensemble` has all versions that the label names together, this one first; empty for a label of one version. They
    were computed in `precision` ("": one that this SDK does not know).
    """

    scores: NDArray[np.float32]
    model_version: str
    timings: values.Timings
    truncated: int
    ensemble: tuple[str, ...] = ()
    precision: str = ""

    @classmethod
    def of(cls, response: encoder_pb2.ScoreResponse) -> Scored:
        """Reads the encoder's answer."""
        return cls(
            scores=vectors.floats(response.scores),
            model_version=response.model_version,
            timings=values.Timings.from_message(response.timings),
            truncated=response.truncated,
            ensemble=tuple(response.ensemble),
            precision=precision_name(response.precision),
        )


@dataclass(frozen=True)
class EncodeOptions:
    """Options of encoding. None and "" leave a choice to the encoder; `label` or `version` names a query encoder."""

    role: Role = "query"
    label: str | None = None
    version: str | None = None
    space_id: str = ""
    truncate: bool = False
    precision: Precision | None = None
    lane: Lane | None = None
    routing_key: str = ""

    @classmethod
    def of(cls, options: EncodeKeywords, call: str) -> EncodeOptions:
        """Makes them of keyword arguments. Raises InvalidArgument for one that the `call` does not take."""
        refuse_unknown(options, EncodeKeywords.__annotations__.keys(), call)
        return cls(**options)

    def request(self, texts: Sequence[str]) -> encoder_pb2.EncodeRequest:
        """Builds the request for `texts`. Raises InvalidArgument for a role, lane or precision that is unknown."""
        return mirrored(
            encoder_pb2.EncodeRequest,
            self,
            texts=texts,
            role=cast("Any", self.role) or "",  # None would leave it unspecified
            model=selector(self.label, self.version),
            truncate=truncation(self.truncate),
        )


class EncodeKeywords(TypedDict, total=False):
    """EncodeOptions as keyword arguments, for editors and type checkers."""

    role: Role
    label: str | None
    version: str | None
    space_id: str
    truncate: bool
    precision: Precision | None
    lane: Lane | None
    routing_key: str


def selector(label: str | None, version: str | None) -> types_pb2.ModelSelector | None:
    """Names a model by version or label; None where neither is given."""
    if version:
        return message(types_pb2.ModelSelector, version=version)
    return message(types_pb2.ModelSelector, label=label) if label else None


def truncation(truncate: bool | None) -> types_pb2.Truncate:
    """Returns whether texts are cut, as messages say it. Raises InvalidArgument for what is not True or False."""
    if truncate is None or isinstance(truncate, bool):
        return types_pb2.TRUNCATE_END if truncate else types_pb2.TRUNCATE_ERROR
    raise InvalidArgument.field("truncate", f"is {shown(truncate)}; give True or False")


def precision_name(number: int) -> str:
    """Returns the name of a precision in messages; "" for none."""
    known = types_pb2.Precision.DESCRIPTOR.values_by_number.get(number)
    return known.name.removeprefix("PRECISION_").lower() if known and number else ""
