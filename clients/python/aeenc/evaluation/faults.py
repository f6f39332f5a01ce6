"""Faults of a data set that no figure shows: queries that are in `train`, too, gold that is no fact, repeated texts.

A text *nearly* equals another if both have the same words (`normalised`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aeenc.errors import InvalidArgument, InvalidTree
from aeenc.evaluation.datasets import Gold, beir_splits, gold_of, grades_of, read_beir
from aeenc.evaluation.leaves import normalised
from aeenc.evaluation.textgraphs import RatedDataset
from aeenc.files.lines import text_lines
from aeenc.trees.dataset import FACTS, FACTS_FILE, Dataset, read_facts, tree_files
from aeenc.trees.files import tree_at
from aeenc.trees.tree import Tree

TRAIN = "train"
# kind -> what it means, in the order of a report
FAULTS = {
    "unreadable": "cannot be read",
    "train-missing": "no train to compare with",
    "query-in-train": "query that is also in train",
    "query-nearly-in-train": "query with the words of one in train",
    "repeated-id": "id of several trees",
    "query-is-its-gold": "query among its own gold premises",
    "facts-missing": "no facts to find gold leaves in",
    "gold-not-a-fact": "gold leaf that is no fact",
    "near-duplicate": "candidate with the words of another",
}
_GRAVE = ("unreadable", "train-missing", "query-in-train", "query-nearly-in-train")


@dataclass(frozen=True)
class Fault:
    """One fault: its kind (`FAULTS`), the split where it stands, and the text at fault.

    In place of a split, `facts` is the fact file or BEIR's corpus, and `queries` BEIR's queries.
    `unreadable`, `train-missing` and `facts-missing` have a message in place of a text, `repeated-id` an id. `other`
    is the text that it nearly equals: a query of train, a fact, or another candidate. Empty: there is none.
    """

    kind: str
    split: str
    text: str
    other: str = ""

    @property
    def is_grave(self) -> bool:
        """Whether figures of the split mean something else than they say, or cannot be had."""
        return self.kind in _GRAVE


def faults_of(directory: Path | str) -> list[Fault]:
    """Lists the faults of a directory in the layout of EntailmentBank or BEIR. Raises NotFound for another layout.

    What cannot be read is a fault, too: each line of a tree file, of BEIR's corpus and of its queries, each query whose
    judgements name what is not there, and the fact file and a file of qrels as a whole.
    """
    root = Path(directory)
    return _faults_of_beir(root) if beir_splits(root) else _faults_of_trees(root)


def _faults_of_beir(root: Path) -> list[Fault]:
    found: list[Fault] = []
    rated = read_beir(root, lambda where, error: found.append(Fault("unreadable", where, error.message)))
    dataset = RatedDataset(rated)
    found += _leaks(root, {split: gold_of(dataset, split) for split in dataset.splits})
    facts = next(iter(rated.values())).facts
    return [*found, *_near_duplicates((text, FACTS) for text in facts.values())]


def _faults_of_trees(root: Path) -> list[Fault]:
    found: list[Fault] = []
    facts: dict[str, str] = {}
    try:
        facts = read_facts(root / FACTS_FILE)
    except InvalidArgument as error:
        found.append(Fault("unreadable", FACTS, error.message))
    else:
        if not facts:
            found.append(Fault("facts-missing", FACTS, f"{root / FACTS_FILE} is missing or holds no facts"))
    trees: dict[str, list[Tree]] = {}
    for split, path in tree_files(root).items():
        trees[split] = []
        for tree in _trees_in(path):
            if isinstance(tree, Tree):
                trees[split].append(tree)
            else:
                found.append(Fault("unreadable", split, tree))
    dataset = Dataset(root, facts, trees)
    known = _by_words(facts.values())
    for split in dataset.splits:
        ids = Counter(tree.id for tree in dataset.trees(split))
        found += [Fault("repeated-id", split, one) for one, count in ids.items() if count > 1]
        if facts:
            found += _unknown_gold(dataset, split, known)
    found += _leaks(root, {split: gold_of(dataset, split) for split in dataset.splits})
    return [*found, *_near_duplicates((one.text, one.splits[0]) for one in dataset.candidates())]


def _trees_in(path: Path) -> Iterator[Tree | str]:
    """Yields the trees of a file, and for a line without one what is wrong with it."""
    lines = 0
    try:
        for place, line in text_lines(path):
            if line.strip():
                lines += 1
                try:
                    yield tree_at(place, line)
                except InvalidTree as error:
                    yield error.message
    except InvalidArgument as error:  # the lines behind it are unreadable as well
        yield error.message
    else:
        if not lines:
            yield f"{path}:1: holds no trees; write one JSON object a line"


def _leaks(root: Path, gold: Mapping[str, Sequence[Gold]]) -> Iterator[Fault]:
    """Yields the queries that tell what is asked of them; `gold` has those of each split."""
    trained = {query for query, _ in gold.get(TRAIN, ())}
    nearly = _by_words(trained)
    for split, queries in gold.items():
        for query, premises in queries:
            if grades_of(premises).get(query):
                yield Fault("query-is-its-gold", split, query)
        if split != TRAIN and not trained:
            message = f"{root} has no split {TRAIN!r} that can be read: what {split} shares with it is unknown"
            yield Fault("train-missing", split, message)
        elif split != TRAIN:
            for query, _ in queries:
                if query in trained:
                    yield Fault("query-in-train", split, query)
                elif (other := nearly.get(normalised(query))) is not None:
                    yield Fault("query-nearly-in-train", split, query, other)


def _unknown_gold(dataset: Dataset, split: str, nearly: Mapping[str, str]) -> Iterator[Fault]:
    facts = set(dataset.facts.values())
    leaves = dict.fromkeys(tree.texts[label] for tree in dataset.trees(split) for label in tree.leaves)
    for text in leaves:
        if text not in facts:
            yield Fault("gold-not-a-fact", split, text, nearly.get(normalised(text), ""))


def _near_duplicates(candidates: Iterable[tuple[str, str]]) -> Iterator[Fault]:
    """Yields each text whose words an earlier one has; `candidates` are texts, each with its split."""
    met: dict[str, str] = {}
    for text, split in candidates:
        words = normalised(text)
        if words in met:
            yield Fault("near-duplicate", split, text, met[words])
        else:
            met[words] = text


def _by_words(texts: Iterable[str]) -> dict[str, str]:
    """Maps the words of each text to it, to the least of several."""
    return {normalised(text): text for text in sorted(texts, reverse=True)}
