"""One loaded checkpoint: its description, its tokenizer, and a runner for each precision it has here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from aeenc.errors import DataLoss, FailedPrecondition, FieldViolation, InvalidArgument
from services.encoder.runtime.runners import Runner, Tokens
from services.store.artifacts import Artifact
from services.store.formats import damage_is_data_loss

FLOAT32, FLOAT16, INT8 = "float32", "float16", "int8"
_TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class Description:
    """The facts in a checkpoint's manifest."""

    version: str
    manifest_sha256: str
    is_cross_encoder: bool
    space_id: str
    dim: int
    max_tokens: int
    pad_id: int
    prefixes: Mapping[str, str]
    int8_passed: bool
    premise_precision: str = FLOAT32  # of a space's pre-trained encoder; others encode premises in float32, if at all

    @classmethod
    def of(cls, artifact: Artifact) -> Description:
        """Reads a manifest. Raises DataLoss unless it is a checkpoint's."""
        meta: Mapping[str, Any] = artifact.meta
        of_premises = str(meta.get("premise_precision", FLOAT32))
        if of_premises not in {FLOAT32, INT8}:
            raise FailedPrecondition(
                f"checkpoint {artifact.id} is of a space with premises in {of_premises}, which this release does not "
                "know; update the encoder"
            )
        if artifact.kind != "checkpoint":
            raise DataLoss(f"{artifact.path} is a {artifact.kind}, not a checkpoint; publish it again")
        with damage_is_data_loss(artifact.path, "publish it again"):
            return cls(
                version=artifact.id,
                manifest_sha256=artifact.manifest_sha256,
                is_cross_encoder=meta.get("model_type") == "cross-encoder",
                space_id=str(meta["space_id"]),
                dim=int(meta["dim"]),
                max_tokens=int(meta["max_tokens"]),
                pad_id=int(meta["pad_id"]),
                prefixes={"query": str(meta["query_prefix"]), "premise": str(meta["premise_prefix"])},
                int8_passed=bool(meta.get("int8", {}).get("passed", False)),
                premise_precision=of_premises if meta.get("pretrained") else FLOAT32,
            )

    @property
    def space_spec(self) -> dict[str, int | str]:
        """The facts that all checkpoints of a space share, by the names of the manifest."""
        prefixes = {f"{role}_prefix": prefix for role, prefix in self.prefixes.items()}
        return {"dim": self.dim, "max_tokens": self.max_tokens, **prefixes}

    def text_of(self, length: int) -> Tokens:
        """Returns some text of so many tokens, none of them padding."""
        return Tokens([0 if self.pad_id else 1] * length, [0] * length)


@dataclass(frozen=True)
class TokenBatch:
    """The tokens of each text, and the number of texts that were cut."""

    tokens: list[Tokens]
    truncated: int


@dataclass(frozen=True)
class _TokenizerFile:
    sha256: str
    path: Path = field(compare=False)


def tokenizer_of(artifact: Artifact) -> Tokenizer:
    """Returns the tokenizer of a verified checkpoint. Raises DataLoss for a malformed file.

    All checkpoints of a space share one. Reading it holds the interpreter's lock for 20 ms or more, a delay that
    callers would notice at each swap; the few that were read last are kept.
    """
    return _read(_TokenizerFile(artifact.files[_TOKENIZER_FILE].sha256, artifact.file(_TOKENIZER_FILE)))


@lru_cache(maxsize=4)
def _read(file: _TokenizerFile) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file.path))
    except Exception as error:  # the library raises bare Exception for any malformed file
        raise DataLoss(f"{file.path} is not a tokenizer ({error}); restore it") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


class Tokenization:
    """Turns texts, or pairs of texts, into token ids; cuts them only on request. Thread-safe: never changes."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer, self.max_tokens = tokenizer, max_tokens

    def texts(self, texts: Sequence[str], *, truncate: bool) -> TokenBatch:
        """Tokenizes with special tokens. Raises InvalidArgument naming each text over the limit unless `truncate`."""
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        return self._cut([Tokens(encoding.ids) for encoding in encodings], "texts", truncate)

    def pairs(self, query: str, premises: Sequence[str], *, truncate: bool) -> TokenBatch:
        """Tokenizes the query with each premise; `truncate` cuts the premise.

        Raises InvalidArgument naming each premise over the limit unless `truncate`, and for a query that fills it.
        """
        alone = len(self._tokenizer.encode(query).ids)
        if alone >= self.max_tokens:
            raise InvalidArgument.field("query", f"{alone} tokens leave no room of the model's {self.max_tokens}")
        # The query once: a word of 16,000 letters is few tokens and much work, and there may be 1,024 premises.
        first = self._tokenizer.encode(query, add_special_tokens=False)
        seconds = self._tokenizer.encode_batch_fast(list(premises), add_special_tokens=False)
        encodings = [self._tokenizer.post_process(first, second) for second in seconds]
        return self._cut([Tokens(encoding.ids, encoding.type_ids) for encoding in encodings], "premises", truncate)

    def _cut(self, tokens: list[Tokens], field: str, truncate: bool) -> TokenBatch:
        too_long = [position for position, one in enumerate(tokens) if len(one.ids) > self.max_tokens]
        if too_long and not truncate:
            violations = [
                FieldViolation(f"{field}[{n}]", f"{len(tokens[n].ids)} tokens are over the model's {self.max_tokens}")
                for n in too_long
            ]
            first = violations[0]
            more = f" (and {len(too_long) - 1} more)" if len(too_long) > 1 else ""
            message = f"{first.field}: {first.description}{more}; shorten it or ask for truncate END"
            raise InvalidArgument(message, violations=violations, reason="TEXT_TOO_LONG")
        for position in too_long:  # the closing special token stays
            last = self.max_tokens - 1
            tokens[position] = Tokens(*([*part[:last], part[-1]] if part else part for part in tokens[position]))
        return TokenBatch(tokens, len(too_long))


class Model:
    """A checkpoint ready to serve. `runners` are by precision: float32, and what labels or premises need beside it.

    `reserved` is whatever must live as long as the model does; `failing` says why it fails every run, by precision.
    """

    def __init__(self, description: Description, tokenization: Tokenization) -> None:
        self.description = description
        self.version = description.version
        self.space_id = description.space_id
        self.dim = description.dim
        self.tokenization = tokenization
        self.runners: dict[str, Runner] = {}
        self.reserved: list[object] = []
        self.failing: dict[str, str] = {}
        self.in_flight = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Counts a call in flight; GetInfo shows the count."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def choose(self, precision: str, default: str, role: str) -> str:
        """Returns the precision for a call that asks for `precision` ("": `default`).

        Premises have that of their space. Raises FailedPrecondition for a precision that is not loaded.
        """
        if role == "premise" and precision not in {"", default}:
            raise InvalidArgument.field(
                "precision", f"is {precision}, but premises of this space are always {default}; leave it unset"
            )
        if (precision or default) not in self.runners:
            raise FailedPrecondition(
                f"version {self.version} is not computed in {precision} here; leave `precision` unset, ask for "
                f"{' or '.join(self.runners)}, or publish it in {precision}",
                reason="PRECISION_NOT_LOADED",
            )
        return precision or default
