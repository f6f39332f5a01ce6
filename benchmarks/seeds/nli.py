"""Training on natural language inference: four losses, by how well the entailed hypotheses of an anchor are found.

    make nli DATA=DIR                           DIR/train.jsonl, or else dev.jsonl, trains; DIR/test.jsonl is asked
    make nli DATA=… ARGS='--sts sts-test.tsv'   also Spearman's rho of cosines with people's scores
    make nli DATA=… ARGS='--base bigru'         from a BiGRU over word vectors of the training texts

Lines as the trainer's kind `nli` takes them. Siamese, through the RPCs of its own fleet; what was trained once on these
files with these settings is found again. The candidates are the distinct hypotheses of the test split, the queries its
premises that entail one. The default base model, all-MiniLM-L6-v2, has seen AllNLI, which confounds the order of the
rows; the BiGRU has seen nothing. `--base` also takes a directory or hub id. docs/results/seeds.md keeps the table.

A file for `--sts` has lines `{"sentence1", "sentence2", "score"}`, or of tabs with these names in its first line, as
the STS benchmark is often laid out. Further fields are passed over.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import aeenc
from aeenc import values
from aeenc.errors import InvalidArgument
from aeenc.files.lines import text_lines
from benchmarks.harness.kept_fleet import BASE_MODEL, ended_job, kept_fleet
from benchmarks.harness.rows import ROOT
from benchmarks.seeds.analogy import RATES, latent, recurrent
from benchmarks.seeds.page import keep_table
from benchmarks.tables.table_text import shown
from services.trainer.jobs.pair_sources import DataSets
from services.trainer.jobs.training_set import JudgedPair
from services.trainer.models.base_model import DEFAULT_NAME
from services.trainer.models.word_vectors import WordVectors

HOME = ROOT / ".aeenc" / "bench" / "nli"
TEXT_BYTES = 16 * 1024
CORPUS = "hypotheses"
LOSSES: Mapping[str, Mapping[str, Any]] = {
    "softmax": {"loss": "nli_classification"},
    "mnrl-pairs": {"loss": "multiple_negatives_ranking", "hard_negatives": 0},
    "mnrl-triplets": {"loss": "multiple_negatives_ranking", "hard_negatives": 1},
    "gist": {"loss": "gist", "hard_negatives": 1},
}


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
    from scipy.stats import spearmanr

    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))
    vectors = np.concatenate([encode(texts[start : start + CALL]) for start in range(0, len(texts), CALL)])
    row = {text: number for number, text in enumerate(texts)}
    first, second = (vectors[[row[one] for one in side]] for side in list(zip(*pairs, strict=True))[:2])
    return float(spearmanr(np.einsum("nd,nd->n", first, second), [pair.score for pair in pairs]).statistic)


def inferences(path: Path) -> list[JudgedPair]:
    """The labelled pairs of a file, the premise as query."""
    return DataSets({"nli": Path(f"nli:{path}")}, TEXT_BYTES).read(["nli"], "")[0]


def entailed(pairs: list[JudgedPair]) -> dict[str, list[str]]:
    """By anchor, the hypotheses that it entails and that are not its own text."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.sign == "POSITIVE" and pair.premise != pair.query:
            found.setdefault(pair.query, []).append(pair.premise)
    return found


class Quality(NamedTuple):
    """The strict MAP of the test split, and Spearman's rho where there is a file to measure it on."""

    map: float
    rho: float | None


class Measured:
    """A running fleet with the corpus of the test split's hypotheses."""

    def __init__(
        self,
        client: aeenc.Client,
        gold: Mapping[str, list[str]],
        items: int,
        similar: Sequence[ScoredPair],
        rate: float,
    ) -> None:
        self._client, self._gold, self._items, self._similar = client, list(gold.items()), items, similar
        self._rate = rate  # 0: that of the loss

    def quality(self, version: str | None = None, generation: str = "") -> Quality:
        """Strict MAP of a version over a generation, and its rho; by default of what serves."""
        report = self._client.trainer.evaluate(
            CORPUS, self._gold, version=version, generation=generation, strict_only=True, timeout_s=3600
        )
        space_id = self._client.trainer.get_checkpoint(version).space_id if version else ""
        encode = partial(self._client.encoder.encode, version=version, space_id=space_id, truncate=True)
        return Quality(
            report.strict.map, spearman(self._similar, lambda texts: encode(texts).vectors) if self._similar else None
        )

    def trained(self, name: str, seed: int, epochs: int) -> Quality:
        """Trains a row with a seed, unless that was done before, and measures it."""
        ended = ended_job(
            self._client,
            f"{name}, seed {seed}",
            corpus=CORPUS,
            data_sets=["nli"],
            mode="siamese",
            epochs=epochs,
            items_per_epoch=self._items,
            seed=seed,
            idempotency_key=f"{name}-{seed}-{epochs}-{self._items}",
            learning_rate=self._rate,
            **LOSSES[name],
        )
        tandem = self._client.trainer.get_checkpoint(ended.version).tandem
        if tandem is None:
            raise SystemExit(f"{name}, seed {seed}: the job left no generation")
        self._client.registry.publish(ended.version, label="nli", wait_s=120, force=True)
        return self.quality(ended.version, tandem.generation)


def main() -> None:
    """Runs the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    base = os.environ.get(BASE_MODEL) or DEFAULT_NAME
    parser.add_argument("--base", default=base, help="a base model: a directory, hub id, or bigru")
    parser.add_argument("--only", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--sts", type=Path, help="pairs of sentences with people's scores: TSV or lines of JSON")
    parser.add_argument("--items", type=int, default=0, help="training pairs of an epoch; 0: all")
    given = parser.parse_args()
    training = next((path for name in ("train", "dev") if (path := given.data / f"{name}.jsonl").is_file()), None)
    test = given.data / "test.jsonl"
    if training is None or not test.is_file():
        raise SystemExit(f"{given.data} needs train.jsonl or dev.jsonl, and test.jsonl")
    similar = read_pairs(given.sts) if given.sts else []
    pairs = inferences(test)
    texts = list(dict.fromkeys(pair.premise for pair in pairs))
    os.environ["AEENC_TRAINER_DATA_SETS"] = json.dumps({"nli": f"nli:{training.resolve()}"})
    name, rate = Path(given.base).name, RATES.get(given.base, 0.0)
    if given.base == "bigru":
        words = [text for pair in inferences(training) for text in (pair.query, pair.premise)]
        given.base = str(recurrent(WordVectors.read(latent(words, HOME / "latent.vec")), HOME))
    if given.base != DEFAULT_NAME:
        os.environ[BASE_MODEL] = given.base
    rows: list[list[str]] = []

    def add(system: str, found: Sequence[Quality]) -> None:
        correlations = [one.rho for one in found if one.rho is not None]
        rows.append([system, shown([one.map for one in found]), *([shown(correlations)] if similar else [])])
        print(" ".join(rows[-1]), flush=True)

    with kept_fleet(HOME / given.data.resolve().name, training, test) as client:
        if CORPUS not in {found.corpus for found in client.index.list_corpora()}:
            client.index.build(CORPUS, [values.Premise(id=f"h{n}", text=text) for n, text in enumerate(texts)])
        measured = Measured(client, entailed(pairs), given.items, similar, rate)
        add("untrained", [measured.quality()])
        for loss in given.only:
            add(loss, [measured.trained(loss, seed, given.epochs) for seed in range(given.seeds)])
    how = f"{given.items or 'all'} pairs of {training.name}, epochs: {given.epochs}, seeds: {given.seeds}"
    about = f"{name}, trained on {how}. Strict MAP over the {len(texts):,} distinct hypotheses of {test.name}."
    columns = ["system", "MAP", *(["Spearman"] if similar else [])]
    keep_table("nli", given.data, about, columns, rows, name)


if __name__ == "__main__":
    main()
