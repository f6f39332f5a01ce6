"""A checkpoint's inputs and outputs: texts, or pairs of them, as padded token ids, and what a model makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from services.trainer.models.space import SpaceSpec

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Pair = tuple[str, str]
Item = str | Pair  # what a model has one output for
Inputs = dict[str, NDArray[np.int64]]  # by the names that models have for them, (batch, longest) each
Outputs = NDArray[np.float32]  # vectors (n, dim) of texts, scores (n,) of pairs
# onnxruntime's fused kernel is slower on a CPU than the two operators that it replaces.
DISABLED_OPTIMIZERS = ["SkipLayerNormFusion"]


class Batches:
    """Cuts at the model's maximum, of a pair the longer text first. `typed`: token types tell the texts of a pair."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, pad_id: int, *, typed: bool = False) -> None:
        self._tokenizer, self.max_tokens, self.pad_id, self._typed = tokenizer, max_tokens, pad_id, typed
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    @classmethod
    def of(cls, directory: Path, spec: SpaceSpec, pad_id: int) -> Batches:
        """Loads the tokenizer of a directory for the texts of a space."""
        return cls(Tokenizer.from_file(str(directory / "tokenizer.json")), spec.max_tokens, pad_id)

    def ids(self, texts: Sequence[str], prefix: str = "") -> list[list[int]]:
        """Returns the token ids of each text with its role's prefix."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch([prefix + text for text in texts])]

    def padded(self, ids: Sequence[Sequence[int]]) -> Inputs:
        """Returns `input_ids` and `attention_mask` of texts."""
        mask = [[1] * len(tokens) for tokens in ids]
        return {"input_ids": _padded(ids, self.pad_id), "attention_mask": _padded(mask, 0)}

    def inputs(self, items: Sequence[Item]) -> Inputs:
        """Returns the inputs of items; `token_type_ids` only of typed pairs."""
        encodings = self._tokenizer.encode_batch(list(items))
        inputs = self.padded([encoding.ids for encoding in encodings])
        types = {"token_type_ids": _padded([encoding.type_ids for encoding in encodings], 0)} if self._typed else {}
        return inputs | types

    def fits(self, pair: Pair) -> bool:
        """Tells whether a pair fits uncut."""
        return not self._tokenizer.encode(*pair).overflowing

    def to_json(self) -> str:
        """Serialises the tokenizer without its limits."""
        whole = Tokenizer.from_str(self._tokenizer.to_str())
        whole.no_truncation()
        return str(whole.to_str())


def by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yields the places of items in batches of so many, those of similar length together: less padding."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def characters(items: Sequence[Item]) -> list[int]:
    """Counts the characters of each item: a length that costs no tokens."""
    return [sum(map(len, item)) for item in items]


def _padded(rows: Sequence[Sequence[int]], filler: int) -> NDArray[np.int64]:
    padded = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def outputs_of(path: Path, batches: Batches, items: Sequence[Item], *, together: int = 1, threads: int = 1) -> Outputs:
    """Computes the outputs of items by an exported model: each alone and unpadded, or so many together.

    With one thread the sums have the same order on every machine with this CPU.
    """
    session = session_of(path, threads)
    names = [put.name for put in session.get_inputs()]
    return computed(
        batches, items, together, lambda inputs: session.run(None, {name: inputs[name] for name in names})[0]
    )


def computed(batches: Batches, items: Sequence[Item], together: int, compute: Callable[[Inputs], Any]) -> Outputs:
    """Computes the outputs of items, so many of similar length together."""
    found = np.empty(0, dtype=np.float32)
    for part in by_length(characters(items), together):
        outputs = compute(batches.inputs([items[n] for n in part]))
        found = found if len(found) else np.empty((len(items), *outputs.shape[1:]), dtype=np.float32)
        found[part] = outputs
    return found


def session_of(path: Path, threads: int) -> InferenceSession:
    """Opens an exported model on the CPU, as the encoder service does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"], disabled_optimizers=DISABLED_OPTIMIZERS
    )
