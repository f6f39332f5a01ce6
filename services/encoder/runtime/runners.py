"""Runners compute one batch: texts padded together, or pairs of texts.

A runner holds one file of one checkpoint on one device. Every runner is thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

NORM_TOLERANCE = 1e-3
EMBEDDING = "sentence_embedding"  # the output of a sentence encoder
Ids = NDArray[np.int64]


class Tokens(NamedTuple):
    """The token ids of a text with its special tokens; for a pair also the text that each token belongs to."""

    ids: Sequence[int]
    segments: Sequence[int] = ()


class Session(Protocol):
    """The interface of an inference session that runners use: onnxruntime's, or one in torch.

    One that computes no padding says so by `pads = False`.
    """

    def run(self, outputs: Sequence[str] | None, feeds: dict[str, Ids], /) -> Sequence[Any]:
        """Computes the named outputs from named inputs."""


class Runner(Protocol):
    """Computes a batch. `pads`: texts are padded to the longest, so the cost is rows times length."""

    pads: bool
    width: int

    def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
        """Returns one row for each text, (n, width). Raises FloatingPointError for a row that is not finite or unit."""


class PaddedRunner:
    """Unit vectors (n, dim) of texts padded to the longest, for models whose result does not depend on the batch."""

    def __init__(self, session: Session, *, pad_id: int, dim: int) -> None:
        self.pads = bool(getattr(session, "pads", True))
        self._session, self._pad_id, self.width = session, pad_id, dim

    def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
        """Returns unit vectors, one for each text."""
        ids, mask = _padded([tokens.ids for tokens in batch], self._pad_id)
        return _unit(self._session.run([EMBEDDING], {"input_ids": ids, "attention_mask": mask})[0])


class PairRunner:
    """Scores (n, 1) of pairs of texts by a cross-encoder: logits; a larger one explains better."""

    pads = True
    width = 1

    def __init__(self, session: Session, *, pad_id: int, segmented: bool) -> None:
        self._session, self._pad_id, self._segmented = session, pad_id, segmented

    def run(self, batch: Sequence[Tokens]) -> NDArray[np.float32]:
        """Returns one score for each pair."""
        ids, mask = _padded([tokens.ids for tokens in batch], self._pad_id)
        feeds = {"input_ids": ids, "attention_mask": mask}
        if self._segmented:
            feeds["token_type_ids"] = _padded([tokens.segments for tokens in batch], 0)[0]
        scores = np.asarray(self._session.run(["score"], feeds)[0], dtype=np.float32).reshape(len(batch), 1)
        if not np.isfinite(scores).all():
            raise FloatingPointError("the model gave a score that is not finite")
        return scores


def _padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Ids, Ids]:
    """Pads rows to one matrix (n, longest) and returns it with its mask."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    inside = np.arange(int(lengths.max())) < lengths[:, None]
    ids = np.full(inside.shape, pad_id, dtype=np.int64)
    ids[inside] = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
    return ids, inside.astype(np.int64)


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    rows = np.asarray(vectors, dtype=np.float32)
    norms = np.einsum("nd,nd->n", rows, rows)
    if not np.all(np.abs(norms - 1) < NORM_TOLERANCE):  # NaN and infinity fail this too
        raise FloatingPointError("the model gave a vector that is not finite or has no unit norm")
    return rows
