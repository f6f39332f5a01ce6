"""Answer selection by analogy beside the figures of Diallo et al. 2019. `make analogy DATA=dir`.

    word vectors ─┬─► their averages ──────────────┐
                  └─► BiGRU ──────► a job for each ├─► the test split's questions: MAP, MRR, by cosine and by analogy
    MiniLM ───────┴─► itself, and   number p ──────┘
                      prototypes

DIR has WikiQA, TrecQA or lines of JSON (docs/training.md), or a folder for each of several such sets. As in the paper,
only who, when and where are asked, and questions with a right answer. `--vectors` names a text file of word vectors;
without one, they are the latent semantics of the training texts, which suffices for a trial. Jobs run on fleets of
their own, through the RPCs, and have idempotency keys: what was trained once, on these files with these settings, is
found again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aeenc
from aeenc import values
from aeenc.evaluation import (
    Question,
    SelectionMetrics,
    analogy_scores,
    answer_ranks,
    answer_splits,
    draw_prototypes,
    read_answers,
    selection_metrics,
    shifts,
)
from benchmarks.harness.kept_fleet import ended_job, kept_fleet
from benchmarks.harness.rows import ROOT
from benchmarks.seeds.page import keep_table
from benchmarks.tables.drawing import keep, panels
from services.trainer.models.word_vectors import WordVectors, write_base_model

HOME = ROOT / ".aeenc" / "bench" / "analogy"
SAMPLE = ROOT / "data" / "sample" / "answers"
NUMBERS = (10, 20, 30, 40, 50)  # of prototypes
PAPER_NUMBER = 30
MODELS = ("words", "bigru", "minilm")
RATES = {"bigru": 1e-3, "minilm": 2e-5}
COLUMNS = ("system", "cosine: MAP", "cosine: MRR", "analogy: MAP", "analogy: MRR", "MAP by p")
PAPER = {  # Table 1, on WikiQA: MAP, MRR
    "GloVe": (0.4640, 0.4750),
    "Word2Vec": (0.4329, 0.453),
    "InferSent": (0.3991, 0.4037),
    "Sent2Vec": (0.4811, 0.4866),
    "theirs, p = 30": (0.6771, 0.6841),
}
WORD = re.compile(r"\w+|[^\w\s]+")
LATENT = 50  # values of a word without --vectors

Vectors = Mapping[str, NDArray[np.floating[Any]]]  # by text
Encode = Callable[[Sequence[str], Sequence[str]], tuple[Vectors, Vectors]]  # questions and answers


@dataclass(frozen=True)
class Selection:
    """One data set: the questions that prototypes come from, and those that are asked."""

    name: str
    path: Path
    training_split: str
    training: tuple[Question, ...]
    asked: tuple[Question, ...]
    numbers: tuple[int, ...]  # of prototypes; one above what the largest class has is that

    @classmethod
    def load(cls, path: Path, split: str, numbers: Sequence[int]) -> Selection:
        """Reads a directory; asks the questions of a split that have a right answer and whose class has prototypes."""
        dataset = read_answers(path)
        training_split = next((name for name in ("train-all", "train") if name in dataset), "train")
        training = dataset.get(training_split, ())
        known = draw_prototypes(training, 1)
        asked = [one for one in dataset.get(split, ()) if one.question_class in known and any(one.answers.values())]
        if not asked:
            raise SystemExit(f"{path}: no question of {split} has a class, a right answer, and a pair in training")
        largest = max(len(pairs) for pairs in draw_prototypes(training, 10**6).values())
        counts = tuple(sorted({min(number, largest) for number in numbers}))
        return cls(path.resolve().name, path.resolve(), training_split, training, tuple(asked), counts)

    def by_cosine(self, encode: Encode) -> SelectionMetrics:
        """Ranks candidates by the cosine with their question."""
        questions, answers = encode(*self._texts([]))
        return self._measured(lambda one: np.array([answers[text] @ questions[one.text] for text in one.answers]))

    def by_analogy(self, encode: Encode, number: int, seed: int) -> SelectionMetrics:
        """Ranks candidates by so many prototypes of the question's class."""
        drawn = draw_prototypes(self.training, number, seed=seed)
        questions, answers = encode(*self._texts([pair for pairs in drawn.values() for pair in pairs]))
        known = {
            name: shifts(np.stack([questions[a] for a, _ in pairs]), np.stack([answers[b] for _, b in pairs]))
            for name, pairs in drawn.items()
        }
        return self._measured(
            lambda one: analogy_scores(
                known[one.question_class], questions[one.text], np.stack([answers[text] for text in one.answers])
            )
        )

    def candidates(self) -> list[str]:
        """The distinct candidates of the questions that are asked."""
        return list(dict.fromkeys(text for one in self.asked for text in one.answers))

    def _measured(self, score: Callable[[Question], Any]) -> SelectionMetrics:
        return selection_metrics([answer_ranks(score(one), [*one.answers.values()]) for one in self.asked])

    def _texts(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
        questions = [*(one.text for one in self.asked), *(question for question, _ in pairs)]
        return list(dict.fromkeys(questions)), list(dict.fromkeys([*self.candidates(), *(text for _, text in pairs)]))


def latent(texts: Sequence[str], path: Path) -> Path:
    """Writes word vectors from texts alone: the singular vectors of their TF-IDF."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=WORD.pattern)
    counts = vectorizer.fit_transform(dict.fromkeys(texts))
    reduced = TruncatedSVD(min(LATENT, *(size - 1 for size in counts.shape)), random_state=0).fit(counts)
    rows = zip(vectorizer.get_feature_names_out(), reduced.components_.T, strict=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{word} {' '.join(f'{value:.6f}' for value in row)}\n" for word, row in rows))
    return path


def averages(vectors: WordVectors) -> Encode:
    """Encodes a text as the mean of its words' vectors, at unit length; 0 for a text of unknown words."""
    known = dict(zip(vectors.words, vectors.vectors, strict=True))
    nothing = np.zeros(vectors.vectors.shape[1])

    def mean(text: str) -> NDArray[np.floating[Any]]:
        words = WORD.findall(text.lower() if vectors.lowercase else text)
        total = np.sum([known.get(word, nothing) for word in words] or [nothing], axis=0)
        return total / (np.linalg.norm(total) or 1.0)

    return lambda questions, answers: ({text: mean(text) for text in questions}, {text: mean(text) for text in answers})


def recurrent(vectors: WordVectors, home: Path) -> Path:
    """Makes the BiGRU's base model, unless it is there; its name tells the word vectors."""
    digest = hashlib.sha256("\n".join(vectors.words).encode() + vectors.vectors.tobytes()).hexdigest()[:8]
    directory = home / f"bigru-{digest}"
    if not directory.is_dir():
        part = home / f"{directory.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        write_base_model(vectors, part).rename(directory)
    return directory


class Measured:
    """A running fleet of one base model."""

    def __init__(self, client: aeenc.Client, rate: float, epochs: int) -> None:
        self._client, self._rate, self._epochs = client, rate, epochs

    def encode(self, version: str = "", space_id: str = "") -> Encode:
        """Encodes by a version of a space; by default as the base model does."""

        def found(questions: Sequence[str], answers: Sequence[str]) -> tuple[Vectors, Vectors]:
            asked = self._client.encoder.encode_all(
                questions, version=version or None, space_id=space_id, precision="float32", truncate=True
            )
            told = self._client.encoder.encode_all(answers, role="premise", space_id=space_id, truncate=True)
            return (
                dict(zip(questions, np.concatenate([one.vectors for one in asked]), strict=True)),
                dict(zip(answers, np.concatenate([one.vectors for one in told]), strict=True)),
            )

        return found

    def trained(self, selection: Selection, number: int, seed: int) -> Encode:
        """Encodes by what a job has learned of so many prototypes, trained unless it was before."""
        corpus = f"answers-{selection.name}"
        if corpus not in {found.corpus for found in self._client.index.list_corpora()}:
            texts = selection.candidates()
            self._client.index.build(corpus, [values.Premise(id=f"a{n}", text=text) for n, text in enumerate(texts)])
        ended = ended_job(
            self._client,
            f"{selection.name}, p = {number}, seed {seed}",
            corpus=corpus,
            data_sets=[selection.name],
            split=selection.training_split,
            mode="siamese",
            loss="analogy",
            prototypes=number,
            epochs=self._epochs,
            learning_rate=self._rate,
            seed=seed,
            idempotency_key=f"analogy-{selection.name}-{number}-{seed}-{self._epochs}",
        )
        self._client.registry.publish(ended.version, label="analogy", wait_s=120, force=True)
        return self.encode(ended.version, self._client.trainer.get_checkpoint(ended.version).space_id)


@contextmanager
def fleet_of(home: Path, data: Path, base: Path | None, rate: float, epochs: int) -> Iterator[Measured]:
    """A fleet of a base model over a directory; None is the default one."""
    os.environ.pop("AEENC_TRAINER_BASE_MODEL", None)
    if base:
        os.environ["AEENC_TRAINER_BASE_MODEL"] = str(base)
    with kept_fleet(home, data) as client:
        yield Measured(client, rate, epochs)


@dataclass(frozen=True)
class Line:
    """A system's quality on a data set: by cosine and, by number of prototypes, by analogy."""

    system: str
    cosine: SelectionMetrics
    analogies: Mapping[int, SelectionMetrics]

    @classmethod
    def of(cls, system: str, selection: Selection, encoders: Callable[[int, int], Encode], seeds: int) -> Line:
        """Measures the encoders of each number of prototypes and seed; the figures are means over seeds."""
        cosines, analogies = [], {}
        for number in selection.numbers:
            made = [encoders(number, seed) for seed in range(seeds)]
            analogies[number] = _mean([selection.by_analogy(one, number, seed) for seed, one in enumerate(made)])
            if number <= PAPER_NUMBER or not cosines:
                cosines = [selection.by_cosine(one) for one in made]
        return cls(system, _mean(cosines), analogies)

    @property
    def papers(self) -> SelectionMetrics:
        """By analogy, with the paper's number of prototypes or the greatest below it."""
        return self.analogies[max((n for n in self.analogies if n <= PAPER_NUMBER), default=min(self.analogies))]


def _mean(found: Sequence[SelectionMetrics]) -> SelectionMetrics:
    return SelectionMetrics(
        map=float(np.mean([one.map for one in found])),
        mrr=float(np.mean([one.mrr for one in found])),
        questions=found[0].questions,
    )


def report(selection: Selection, split: str, lines: Sequence[Line], home: Path) -> None:
    """Prints the table beside the paper's, and draws the picture over the number of prototypes."""
    rows: list[list[str | float]] = []
    for line in lines:
        numbers = ", ".join(f"{number}: {found.map:.4f}" for number, found in line.analogies.items())
        rows.append([line.system, line.cosine.map, line.cosine.mrr, line.papers.map, line.papers.mrr, numbers])
    rows += [[f"paper: {name}", "", "", mean, reciprocal, "WikiQA"] for name, (mean, reciprocal) in PAPER.items()]
    about = f"{split}: {len(selection.asked)} questions, prototypes of {selection.training_split}."
    keep_table("analogy", selection.path, about, COLUMNS, rows)
    path = home / f"prototypes-{selection.name}-{split}.png"
    draw(lines, path)
    print(f"MAP and MRR by p ({', '.join(map(str, selection.numbers))}): {path}")


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draws MAP and MRR over the number of prototypes, a line for each system."""
    figure, axes = panels(2, (8, 3.5), sharey=True)
    for axis, name in zip(axes, ("map", "mrr"), strict=True):
        for line in lines:
            found = [getattr(one, name) for one in line.analogies.values()]
            axis.plot([*line.analogies], found, marker="o", markersize=3, label=line.system)
        axis.set_xlabel("prototypes of a class")
        axis.set_title(name.upper())
    axes[0].legend(frameon=False, fontsize=8)
    keep(figure, path)


def selections_of(data: Path, split: str, numbers: Sequence[int]) -> list[Selection]:
    """The data set of a directory, or those of its folders."""
    folders = [data] if answer_splits(data) else sorted(one for one in data.iterdir() if one.is_dir())
    found = [Selection.load(one, split, numbers) for one in folders if answer_splits(one)]
    if not found:
        raise SystemExit(f"{data} has no WikiQA-<split>.tsv, <split>.xml, .jsonl or .json, nor a folder with them")
    return found


def main() -> None:
    """Prints the tables and draws the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=SAMPLE)
    parser.add_argument("--vectors", type=Path, help="word vectors: a text file of fastText, word2vec or GloVe")
    parser.add_argument("--split", default="test", help="of the questions that are asked")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--prototypes", type=int, nargs="+", default=NUMBERS, help="of a class; each is a job")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    selections = selections_of(given.data, given.split, given.prototypes)
    os.environ["AEENC_TRAINER_DATA_SETS"] = json.dumps({one.name: f"analogy:{one.path}" for one in selections})
    os.environ["AEENC_TRAINER_INT8"] = "false"  # measured in float32
    home = HOME / given.data.resolve().name
    questions = [one for selection in selections for one in selection.training]
    texts = [text for one in questions for text in (one.text, *one.answers)]
    vectors = WordVectors.read(given.vectors or latent(texts, home / "latent.vec"))
    lines: dict[str, list[Line]] = {one.name: [] for one in selections}

    def add(system: str, selection: Selection, encoders: Callable[[int, int], Encode], seeds: int = 1) -> None:
        lines[selection.name].append(Line.of(system, selection, encoders, seeds))

    if "words" in given.only:
        mean = averages(vectors)
        for selection in selections:
            add("averaged words", selection, lambda *_: mean, given.seeds)
    for model in given.only:
        if model == "words":
            continue
        base = recurrent(vectors, home) if model == "bigru" else None
        own = home / (base.name + "-fleet" if base else model)
        with fleet_of(own, given.data, base, RATES[model], given.epochs) as measured:
            for selection in selections:
                if not base:
                    add(model, selection, lambda *_: measured.encode(), given.seeds)
                add(f"{model}, analogies", selection, partial(measured.trained, selection), given.seeds)
    for selection in selections:
        report(selection, given.split, lines[selection.name], home)


if __name__ == "__main__":
    main()
