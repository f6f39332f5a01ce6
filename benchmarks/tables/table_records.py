"""The results of Table 1: one JSON file a row and seed, which names the candidates that it was measured among.

They and all pages lie in docs/results, or in the folder that AEENC_BENCH_RESULTS names.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeenc.cli.corpus import corpus_name
from aeenc.trees import Dataset
from benchmarks.harness.rows import KEPT

RESULTS = KEPT
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Candidates:
    """The premises that were ranked: their corpus, which is named after their texts, and their number."""

    corpus: str
    count: int

    @classmethod
    def of(cls, dataset: Dataset) -> Candidates:
        """Those of a data set; each of its splits adds some."""
        return cls(corpus_name(dataset), len(dataset.candidates()))

    def __str__(self) -> str:
        return f"{self.count:,} candidates ({self.corpus or 'of an unknown corpus'})"


@dataclass(frozen=True)
class Record:
    """The content of a file: the report of a row and seed, and the candidates that were ranked."""

    row: str
    seed: int
    candidates: Candidates
    report: Mapping[str, Any]


def file_of(row: str, split: str, seed: int) -> Path:
    """The file of the result of a row and a seed."""
    return RESULTS / f"table1-{split}" / f"{row}-{seed}.json"


def record_of(row: str, split: str, seed: int) -> Record | None:
    """The result of a row and a seed; None where there is none."""
    path = file_of(row, split, seed)
    return _read(path) if path.is_file() else None


def records(split: str) -> list[Record]:
    """All results of a split."""
    return [_read(path) for path in sorted((RESULTS / f"table1-{split}").glob("*.json"))]


def write(record: Record, split: str, **told: Any) -> None:
    """Keeps a result, with whatever else is to be told of it."""
    content = {
        "format_version": FORMAT_VERSION,
        "row": record.row,
        "split": split,
        "seed": record.seed,
        "corpus": record.candidates.corpus,
        "candidates": record.candidates.count,
        **told,
        "report": record.report,
    }
    path = file_of(record.row, split, record.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_with_short_lists(json.dumps(content, indent=1)) + "\n")


def candidates_of(split: str, corpus: str = "") -> Candidates | None:
    """The candidates of all results of a split, or those of `corpus`; None for no results.

    Ends the process with status 2 where it is not clear which are meant.
    """
    there = list(dict.fromkeys(one.candidates for one in records(split)))
    told = " and ".join(map(str, there)) or "none"
    chosen = [one for one in there if corpus in {"", one.corpus}]
    if len(chosen) > 1:
        print(f"{split} has results among {told}; choose by --corpus NAME, or measure all anew", file=sys.stderr)
        sys.exit(2)
    if corpus and not chosen:
        print(f"{split} has no results of corpus {corpus!r}; it has results among {told}", file=sys.stderr)
        sys.exit(2)
    return chosen[0] if chosen else None


def _with_short_lists(text: str) -> str:
    """Puts each list of numbers and nulls on one line; the figures by query would take one each."""
    return re.sub(r"\[((?:[\s\d.,e-]|null)+)\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def _read(path: Path) -> Record:
    content = json.loads(path.read_bytes())
    report = content["report"]
    candidates = Candidates(content.get("corpus", ""), report["candidates"])
    return Record(content["row"], content["seed"], candidates, report)
