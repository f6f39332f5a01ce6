"""Encoders of the recipe `ours` that have not seen a fold of train, and one that has seen all of it, by seed.

No split chooses an epoch: each is the last of the recipe's. What was trained once is found again (Research.train).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aeenc.cli.corpus import ensure_corpus
from aeenc.files.whole import whole_folder
from aeenc.trees import Dataset, write_folds
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.kept_fleet import inputs_digest
from benchmarks.tables.research import HOME, Research, research
from benchmarks.tables.table_rows import OURS
from services.trainer.models.base_model import DEFAULT_NAME

FOLDS = 5


def fold_directories(dataset: Dataset) -> Mapping[str, Path]:
    """The folds of the data by name; written once for the same files."""
    to = HOME / f"folds-{inputs_digest(dataset.directory)}"
    if not to.is_dir():
        with whole_folder(to) as temporary:
            write_folds(dataset, temporary, number=FOLDS)
    return {f"fold-{n}": to / f"fold-{n}" for n in range(FOLDS)}


@dataclass(frozen=True)
class Folds:
    """A fleet over the data, and the same fleet over each fold of it."""

    whole: Research
    directories: Mapping[str, Path]

    def fold(self, name: str) -> Research:
        """The fleet over a fold, whose corpus says which texts stand only in the fold."""
        dataset = Dataset.load(self.directories[name])
        return Research(self.whole.client, dataset, ensure_corpus(self.whole.client, dataset), self.whole.home)

    def version_without(self, name: str, fields: Mapping[str, Any] = OURS) -> str:
        """The encoder that has not seen a fold."""
        own = {**fields, "data_sets": [name], "seed": 0, "validation": []}
        return str(self.fold(name).train(f"without-{name}", own).version)

    def version(self, seed: int, fields: Mapping[str, Any] = OURS) -> str:
        """The encoder that has seen all of train."""
        return str(self.whole.train("whole", {**fields, "seed": seed, "validation": []}).version)


@contextmanager
def folds(base_model: str = DEFAULT_NAME, **settings: Any) -> Iterator[Folds]:
    """A fleet with the folds of the benchmarks' data among its data sets."""
    directories = fold_directories(entailmentbank())
    with research(base_model, further=directories, **settings) as whole:
        yield Folds(whole, directories)
