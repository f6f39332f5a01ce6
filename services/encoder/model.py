"""One loaded checkpoint: its tokenizer, and a runner for each precision that it can be computed in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aeenc.errors import DataLoss, FailedPrecondition, InvalidArgument
from services.encoder.runners import Runner
from services.encoder.tokenization import Tokenization
from services.store.artifacts import Artifact

ModelType = Literal["sentence-encoder", "cross-encoder"]
CROSS_ENCODERS = "cross-encoder"  # the registry's place for their labels; they have no vector space
FLOAT32, FLOAT16, INT8 = "float32", "float16", "int8"
_META = ("space_id", "dim", "max_tokens", "pad_id", "query_prefix", "premise_prefix")


@dataclass(frozen=True)
class Description:
    """What a checkpoint's manifest says about it."""

    version: str
    manifest_sha256: str
    model_type: ModelType
    space_id: str
    dim: int
    max_tokens: int
    pad_id: int
    prefixes: Mapping[str, str]
    int8_passed: bool

    @classmethod
    def of(cls, artifact: Artifact) -> Description:
        """Reads a manifest. Raises DataLoss for one that is no checkpoint's."""
        meta: Mapping[str, Any] = artifact.meta
        missing = [name for name in _META if name not in meta]
        if artifact.kind != "checkpoint" or missing:
            lacks = ", ".join(missing) or "kind"
            raise DataLoss(f"{artifact.path} is no checkpoint (missing {lacks}); publish it again")
        try:
            return cls(
                version=artifact.id,
                manifest_sha256=artifact.manifest_sha256,
                model_type="cross-encoder" if meta.get("model_type") == "cross-encoder" else "sentence-encoder",
                space_id=str(meta["space_id"]),
                dim=int(meta["dim"]),
                max_tokens=int(meta["max_tokens"]),
                pad_id=int(meta["pad_id"]),
                prefixes={"query": str(meta["query_prefix"]), "premise": str(meta["premise_prefix"])},
                int8_passed=bool(meta.get("int8", {}).get("passed", False)),
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise DataLoss(f"{artifact.path} has a manifest with wrong values ({error}); publish it again") from error


class Model:
    """A checkpoint that can be served. `runners` are by precision, the one that is used by default first.

    `precision_reason` says why the precision that this encoder is set to is not among them.
    """

    def __init__(
        self,
        description: Description,
        tokenization: Tokenization,
        runners: Mapping[str, Runner],
        precision_reason: str = "",
    ) -> None:
        self.description = description
        self.version = description.version
        self.space_id = description.space_id
        self.dim = description.dim
        self.model_type = description.model_type
        self.tokenization = tokenization
        self.runners = dict(runners)
        self.precision_reason = precision_reason

    def choose(self, precision: str, role: str) -> str:
        """The precision of a call that asks for `precision` ("": what this encoder is set to).

        Premises are always computed in single precision. Raises FailedPrecondition for what is not here.
        """
        if role == "premise":
            if precision not in {"", FLOAT32}:
                raise InvalidArgument.field(
                    "precision", f"is {precision}, but premises are always float32; leave it unset"
                )
            return FLOAT32
        if not precision:
            return next(iter(self.runners))
        if precision not in self.runners:
            why = f" ({self.precision_reason})" if self.precision_reason else ""
            raise FailedPrecondition(
                f"version {self.version} is not computed in {precision} here{why}; leave `precision` unset or ask for "
                f"{' or '.join(self.runners)}",
                reason="PRECISION_NOT_LOADED",
            )
        return precision
