"""What computes a batch: onnxruntime over token ids, padded together or one by one, and over pairs of texts.

A runner is one file of one checkpoint on one device. It may be called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

NORM_TOLERANCE = 1e-3
Ids = NDArray[np.int64]


class Tokens(NamedTuple):
    """The token ids of a text with its special tokens; of a pair also which text each token belongs to."""

    ids: Sequence[int]
    segments: Sequence[int] = ()


class Session(Protocol):
    """The part of an inference session that is used: onnxruntime's, or the torch runtime's own."""

    def run(self, outputs: Sequence[str] | None, feeds: dict[str, Ids]) -> Sequence[Any]:
        """The named outputs for named inputs."""


class Runner(Protocol):
    """Computes a batch. `pads`: texts of a batch are padded to the longest, so its cost is rows times length."""

    pads: bool
    width: int

    def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
        """One row a text, (n, width). Raises FloatingPointError for values that no caller may see."""


class PaddedRunner:
    """Unit vectors (n, dim) of texts padded to the longest: where a result does not depend on the batch."""

    pads = True

    def __init__(self, session: Session, *, pad_id: int, dim: int) -> None:
        self._session, self._pad_id, self.width = session, pad_id, dim

    def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
        """Unit vectors, one a text."""
        ids, mask = _padded([tokens.ids for tokens in batch], self._pad_id)
        return _unit(self._session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0])


class SingleRunner:
    """Unit vectors (n, dim), each text in a run of its own, without padding.

    Dynamic quantisation takes the scale of its activations from all that is in a run, so a text's int8 vector would
    depend on its neighbours.
    """

    pads = False

    def __init__(self, session: Session, *, dim: int) -> None:
        self._session, self.width = session, dim

    def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
        """Unit vectors, one a text."""
        return _unit(np.concatenate([self._one(tokens) for tokens in batch]))

    def _one(self, tokens: Tokens) -> NDArray[np.float32]:
        ids = np.array([tokens.ids], dtype=np.int64)
        vector: NDArray[np.float32] = self._session.run(
            ["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        )[0]
        return vector


class PairRunner:
    """Scores (n, 1) of pairs of texts, as a cross-encoder gives them: logits, larger explains better."""

    pads = True
    width = 1

    def __init__(self, session: Session, *, pad_id: int, segmented: bool) -> None:
        self._session, self._pad_id, self._segmented = session, pad_id, segmented

    def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
        """One score a pair."""
        ids, mask = _padded([tokens.ids for tokens in batch], self._pad_id)
        feeds = {"input_ids": ids, "attention_mask": mask}
        if self._segmented:
            feeds["token_type_ids"] = _padded([tokens.segments for tokens in batch], 0)[0]
        scores = np.asarray(self._session.run(["score"], feeds)[0], dtype=np.float32).reshape(len(batch), 1)
        if not np.isfinite(scores).all():
            raise FloatingPointError("the model gave a score that is not finite")
        return scores


def _padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Ids, Ids]:
    """Rows of any length as one matrix (n, longest) and its mask."""
    if len(rows) == 1:
        alone = np.array(rows, dtype=np.int64)
        return alone, np.ones_like(alone)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    inside = np.arange(int(lengths.max())) < lengths[:, None]
    ids = np.full(inside.shape, pad_id, dtype=np.int64)
    ids[inside] = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
    return ids, inside.astype(np.int64)


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    found = np.asarray(vectors, dtype=np.float32)
    norms = np.einsum("nd,nd->n", found, found)
    if not np.all(np.abs(norms - 1) < NORM_TOLERANCE):  # NaN and infinity fail this too
        raise FloatingPointError("the model gave a vector that is not finite or has no unit norm")
    return found
