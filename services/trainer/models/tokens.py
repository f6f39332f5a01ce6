"""Texts to token ids, as a checkpoint or base model does it. Padding, which makes tensors, is torch's and elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from services.trainer.models.space import SpaceSpec


class Tokens:
    """The tokenizer of a directory; it cuts at the space's maximum."""

    def __init__(self, directory: Path, spec: SpaceSpec) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(spec.max_tokens)

    def ids(self, texts: Sequence[str], prefix: str) -> list[list[int]]:
        """Returns the token ids of each text with its role's prefix."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch([prefix + text for text in texts])]


def pad_id_of(directory: Path) -> int:
    """Reads the padding token's id from config.json."""
    return int(json.loads((directory / "config.json").read_bytes()).get("pad_token_id") or 0)
