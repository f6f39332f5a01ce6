"""Texts, and pairs of texts, to token ids. Truncation is asked for, never silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from aeenc.errors import DataLoss, FieldViolation, InvalidArgument
from services.encoder.runners import Tokens
from services.store.artifacts import Artifact

FILE = "tokenizer.json"
KEPT = 4


@dataclass(frozen=True)
class Tokenized:
    """The tokens of each text, and how many texts were cut."""

    tokens: list[Tokens]
    truncated: int


class Tokenizers:
    """The tokenizers last read, by the hash of their file. Safe to ask from several threads.

    All checkpoints of a space have the same one, and reading it holds the interpreter's lock for 20 ms or more, which
    callers would feel at each swap.
    """

    def __init__(self) -> None:
        self._read: dict[str, Tokenizer] = {}

    def of(self, artifact: Artifact) -> Tokenizer:
        """A checkpoint's tokenizer, its files verified. Raises DataLoss for a file that is none."""
        digest = artifact.files[FILE].sha256
        tokenizer = self._read.pop(digest, None) or _read(artifact.file(FILE))
        self._read[digest] = tokenizer  # the last one now
        for old in list(self._read)[:-KEPT]:
            self._read.pop(old, None)
        return tokenizer


def _read(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for any malformed file
        raise DataLoss(f"{path} is no tokenizer ({error}); restore it") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


class Tokenization:
    """A checkpoint's tokenizer. Safe to call from several threads: it is never changed after loading."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer, self.max_tokens = tokenizer, max_tokens

    def texts(self, texts: Sequence[str], *, truncate: bool) -> Tokenized:
        """Tokens with special tokens. Raises InvalidArgument naming each text over the limit unless `truncate`."""
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        return self._cut([Tokens(encoding.ids) for encoding in encodings], "texts", truncate)

    def pairs(self, query: str, premises: Sequence[str], *, truncate: bool) -> Tokenized:
        """Tokens of the query with each premise; `truncate` cuts the premise.

        Raises InvalidArgument naming each premise over the limit unless `truncate`, and for a query that leaves none.
        """
        alone = len(self._tokenizer.encode(query).ids)
        if alone >= self.max_tokens:
            raise InvalidArgument.field("query", f"{alone} tokens leave no room of the model's {self.max_tokens}")
        encodings: Any = self._tokenizer.encode_batch_fast([(query, premise) for premise in premises])
        return self._cut([Tokens(encoding.ids, encoding.type_ids) for encoding in encodings], "premises", truncate)

    def _cut(self, tokens: list[Tokens], field: str, truncate: bool) -> Tokenized:
        too_long = [position for position, one in enumerate(tokens) if len(one.ids) > self.max_tokens]
        if too_long and not truncate:
            raise self._too_long(tokens, too_long, field)
        for position in too_long:
            tokens[position] = Tokens(*(self._shortened(part) for part in tokens[position]))
        return Tokenized(tokens, len(too_long))

    def _shortened(self, part: Sequence[int]) -> Sequence[int]:
        return [*part[: self.max_tokens - 1], part[-1]] if part else part  # the closing special token stays

    def _too_long(self, tokens: list[Tokens], too_long: list[int], field: str) -> InvalidArgument:
        violations = [
            FieldViolation(f"{field}[{n}]", f"{len(tokens[n].ids)} tokens are over the model's {self.max_tokens}")
            for n in too_long
        ]
        first = violations[0]
        more = f" (and {len(too_long) - 1} more)" if len(too_long) > 1 else ""
        message = f"{first.field}: {first.description}{more}; shorten it or ask for truncate END"
        return InvalidArgument(message, violations=violations, reason="TEXT_TOO_LONG")
