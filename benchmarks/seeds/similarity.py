"""Semantic textual similarity: how well cosines order pairs of sentences as people's scores do (Spearman's rho).

A file of lines `{"sentence1", "sentence2", "score"}`, or of tabs with these names in its first line, as the STS
benchmark is often laid out. Further fields are passed over.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from aeenc.errors import InvalidArgument

CALL = 256  # texts
Encode = Callable[[Sequence[str]], NDArray[np.float32]]


class ScoredPair(NamedTuple):
    """Two sentences, and how similar people find them."""

    first: str
    second: str
    score: float


def read_pairs(path: Path) -> list[ScoredPair]:
    """Reads a file. Raises InvalidArgument naming file and line for what is no pair, and for a file without two."""
    rows = _of_json if path.suffix in {".json", ".jsonl"} else _of_tabs
    pairs = [_pair(row, f"{path}:{number}") for number, row in rows(path)]
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


def _pair(row: Mapping[str, Any], place: str) -> ScoredPair:
    for name in ("sentence1", "sentence2"):
        if not isinstance(text := row.get(name), str) or not text.strip():
            raise InvalidArgument(f"{place}: {name} is {text!r}; give a sentence")
    try:
        score = float(row.get("score", ""))
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score) or isinstance(row["score"], bool):
        raise InvalidArgument(f"{place}: score is {row.get('score')!r}; give a number")
    return ScoredPair(row["sentence1"].strip(), row["sentence2"].strip(), score)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip():
                yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read ({error}); give a file in UTF-8") from error


def _of_json(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in _lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"{path}:{number}: not JSON ({str(error)[:80]}); give an object in each line"
            ) from error
        if not isinstance(row, dict):
            raise InvalidArgument(f"{path}:{number}: {line[:80]!r} is no object; give one in each line")
        yield number, row


def _of_tabs(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    names: list[str] = []
    for number, line in _lines(path):
        cells = next(csv.reader([line], delimiter="\t", quoting=csv.QUOTE_NONE))
        if not names:
            names = [cell.strip() for cell in cells]
            if missing := {"sentence1", "sentence2", "score"} - set(names):
                raise InvalidArgument(
                    f"{path}:{number}: no column {', '.join(sorted(missing))}; name them in its first line"
                )
        elif len(cells) != len(names):
            raise InvalidArgument(f"{path}:{number}: has {len(cells)} cells, the first line {len(names)}; give as many")
        else:
            yield number, dict(zip(names, cells, strict=True))
