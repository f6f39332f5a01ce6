"""Semantic textual similarity: how well cosines order pairs of sentences as people's scores do (Spearman's rho).

A file of lines `{"sentence1", "sentence2", "score"}`, or of tabs with these names in its first line, as the STS
benchmark is often laid out. Further fields are passed over.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from aeenc.errors import InvalidArgument
from aeenc.files.lines import text_lines

CALL = 256  # texts
WANTED = "give sentence1, sentence2 and score"
Encode = Callable[[Sequence[str]], NDArray[np.float32]]


class ScoredPair(NamedTuple):
    """Two sentences, and how similar people find them."""

    first: str
    second: str
    score: float


def read_pairs(path: Path) -> list[ScoredPair]:
    """Reads a file. Raises InvalidArgument naming file and line for what is not a pair, and for a file without two."""

    def cells_of(line: str) -> list[str]:
        return next(csv.reader([line], delimiter="\t", quoting=csv.QUOTE_NONE))

    lines = [(place, line.strip("\r\n")) for place, line in text_lines(path) if line.strip()]
    is_json, pairs = path.suffix in {".json", ".jsonl"}, list[ScoredPair]()
    names = [] if is_json or not lines else [name.strip() for name in cells_of(lines.pop(0)[1])]
    for place, line in lines:
        try:
            row: Any = json.loads(line) if is_json else dict(zip(names, cells_of(line), strict=True))
            pair = ScoredPair(row["sentence1"].strip(), row["sentence2"].strip(), float(row["score"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidArgument(f"{place}: {line[:80]!r} is not a pair ({error!s:.80}); {WANTED}") from error
        if not (pair.first and pair.second and math.isfinite(pair.score)) or isinstance(row["score"], bool):
            raise InvalidArgument(f"{place}: {line[:80]!r} is not a pair; {WANTED}")
        pairs.append(pair)
    if len({pair.score for pair in pairs}) < 2:
        raise InvalidArgument(f"{path}: has no two different scores; give pairs of sentences with people's scores")
    return pairs


def spearman(pairs: Sequence[ScoredPair], encode: Encode) -> float:
    """Spearman's rank correlation of the scores with the cosines of unit vectors; ties share their mean rank."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))
    vectors = np.concatenate([encode(texts[start : start + CALL]) for start in range(0, len(texts), CALL)])
    row = {text: number for number, text in enumerate(texts)}
    first, second = (vectors[[row[one] for one in side]] for side in list(zip(*pairs, strict=True))[:2])
    return float(spearmanr(np.einsum("nd,nd->n", first, second), [pair.score for pair in pairs]).statistic)
