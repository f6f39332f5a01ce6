"""Texts to token ids. Truncation is asked for, never silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from aeenc.errors import DataLoss, FieldViolation, InvalidArgument


@dataclass(frozen=True)
class Tokenized:
    """Token ids of each text, and how many texts were cut."""

    ids: list[list[int]]
    truncated: int


class Tokenization:
    """A checkpoint's tokenizer. Safe to call from several threads: it is never changed after loading."""

    def __init__(self, path: Path, max_tokens: int) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for any malformed file
            raise DataLoss(f"{path} is no tokenizer ({error}); restore it") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.max_tokens = max_tokens

    def __call__(self, texts: Sequence[str], *, truncate: bool) -> Tokenized:
        """Token ids with special tokens. Raises InvalidArgument naming each text over the limit unless `truncate`."""
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        too_long = [position for position, tokens in enumerate(ids) if len(tokens) > self.max_tokens]
        if too_long and not truncate:
            raise self._too_long(ids, too_long)
        for position in too_long:  # the closing special token stays
            ids[position] = [*ids[position][: self.max_tokens - 1], ids[position][-1]]
        return Tokenized(ids, len(too_long))

    def _too_long(self, ids: list[list[int]], too_long: list[int]) -> InvalidArgument:
        violations = [
            FieldViolation(f"texts[{n}]", f"{len(ids[n])} tokens are over the model's {self.max_tokens}")
            for n in too_long
        ]
        first = violations[0]
        more = f" (and {len(too_long) - 1} more)" if len(too_long) > 1 else ""
        message = f"{first.field}: {first.description}{more}; shorten it or ask for truncate END"
        return InvalidArgument(message, violations=violations, reason="TEXT_TOO_LONG")
