"""A directory in EntailmentBank's layout: facts, trees by split, and the queries and candidates made from them.

    DIR/dataset/task_1/<split>.jsonl                                     trees
    DIR/dataset/task_2/<split>.jsonl                                     the same trees with distractors (optional)
    DIR/supporting_data/worldtree_corpus_sentences_extended.json         fact id -> fact text

Texts are compared exactly: duplicates are one premise.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from aeenc.errors import InvalidArgument, NotFound
from aeenc.files.lines import json_file, refuse_half
from aeenc.trees.files import read_trees
from aeenc.trees.tree import Tree

FACTS_FILE = "supporting_data/worldtree_corpus_sentences_extended.json"
FACTS = "facts"
_ORDER = {FACTS: 0, "train": 1, "dev": 2, "test": 3}


@dataclass(frozen=True)
class Candidate:
    """One distinct premise text. `splits` are those whose trees hold it, and `facts` if the fact file does."""

    id: str
    text: str
    aliases: tuple[str, ...]
    splits: tuple[str, ...]


@dataclass(frozen=True)
class Accessible:
    """The premises that may explain a query: those before one in the corpus, and those of a list, by id.

    With None, the list does not restrict them. Raises InvalidArgument for an empty list, which services would take for
    None.
    """

    before_id: str = ""
    only_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        given: Any = self.only_ids
        if given is None:
            return
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InvalidArgument.field("only_ids", f"is {given!r:.60}; give a list")
        object.__setattr__(self, "only_ids", tuple(given))
        if not self.only_ids:
            raise InvalidArgument.field("only_ids", "is empty; leave it out to search all, or give at least one")


EVERYTHING = Accessible()


class GoldQuery(NamedTuple):
    """A distinct parent text of a split and its gold premises: the union of its children over the split's trees."""

    text: str
    gold: tuple[str, ...]


class Dataset:
    """Facts and trees of one directory. Read with `Dataset.load`."""

    def __init__(self, directory: Path, facts: dict[str, str], trees: dict[str, list[Tree]]) -> None:
        self.directory = directory
        self.facts = facts
        self._trees = trees

    @classmethod
    def load(cls, directory: Path | str) -> Dataset:
        """Reads all splits of a directory. Raises NotFound for another layout, InvalidTree for a malformed file."""
        root = Path(directory)
        files = tree_files(root)
        facts = read_facts(root / FACTS_FILE)
        return cls(root, facts, {split: read_trees(path) for split, path in files.items()})

    @staticmethod
    def splits_in(directory: Path | str) -> tuple[str, ...]:
        """Lists the splits of a directory without reading them. Raises NotFound for another layout."""
        return tuple(tree_files(Path(directory)))

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits present: train, dev, test, then others by name."""
        return tuple(self._trees)

    def trees(self, split: str) -> list[Tree]:
        """Returns the trees of a split. Raises NotFound for an unknown one."""
        if split not in self._trees:
            raise NotFound(f"{self.directory} has no split {split!r}; it has {', '.join(self.splits)}")
        return self._trees[split]

    def hypotheses(self, split: str) -> list[tuple[str, str]]:
        """Lists (tree id, hypothesis) of each distinct hypothesis, in file order."""
        first: dict[str, str] = {}
        for tree in self.trees(split):
            first.setdefault(tree.hypothesis, tree.id)
        return [(tree_id, text) for text, tree_id in first.items()]

    def queries(self, split: str) -> list[GoldQuery]:
        """Lists the distinct queries of a split with their gold premises, in file order."""
        gold: dict[str, dict[str, None]] = {}
        for tree in self.trees(split):
            for label, children in tree.children.items():
                texts = gold.setdefault(tree.texts[label], {})
                texts.update(dict.fromkeys(tree.texts[child] for child in children))
        return [GoldQuery(text, tuple(premises)) for text, premises in gold.items()]

    @cached_property
    def _candidates(self) -> list[Candidate]:
        ids: dict[str, list[str]] = {}
        for fact_id, text in self.facts.items():
            ids.setdefault(text, []).append(fact_id)
        splits: dict[str, dict[str, None]] = {text: {FACTS: None} for text in ids}
        for split in self.splits:
            for tree in self.trees(split):
                for child in chain.from_iterable(tree.children.values()):
                    text = tree.texts[child]
                    ids.setdefault(text, [content_id(text)])
                    splits.setdefault(text, {})[split] = None
        for split in self.splits:  # a hypothesis that is also a fact belongs to its split as well
            for tree in self.trees(split):
                if tree.hypothesis in splits:
                    splits[tree.hypothesis][split] = None
        return [
            Candidate(names[0], text, tuple(names[1:]), tuple(sorted(splits[text], key=_split_order)))
            for text, names in ids.items()
        ]

    def candidates(self) -> list[Candidate]:
        """Lists all distinct premise texts in the order of insertion: the fact file, then the trees of each split."""
        return self._candidates

    def distractor_triplets(self, split: str) -> Iterator[tuple[str, str, str]]:
        """Yields (query, gold premise, distractor) of task_2: each step's premises with each sentence no step uses.

        A premise that a step names twice counts twice, as in the literature. Yields nothing without a task_2.
        """
        path = self.directory / "dataset" / "task_2" / f"{split}.jsonl"
        for tree in read_trees(path) if path.is_file() else ():
            leaves = set(tree.leaves)
            distractors = [text for label, text in tree.sentences.items() if label not in leaves]
            for step in tree.steps:
                for premise in step.premises:
                    for distractor in distractors:
                        yield step.text, tree.texts[premise], distractor


def tree_files(root: Path) -> dict[str, Path]:
    """Maps the splits of a directory to their tree files, train first. Raises NotFound for another layout."""
    files = {path.stem: path for path in split_files(root, "task_1")}
    if not files:
        there = "is a file, not a directory; " if root.exists() else "the directory does not exist; "
        there = "" if root.is_dir() else there
        raise NotFound(f"{root}: {there}give one with dataset/task_1/<split>.jsonl, as EntailmentBank's layout has it")
    return {split: files[split] for split in sorted(files, key=_split_order)}


def split_files(root: Path, task: str) -> list[Path]:
    """Lists the tree files of a task by name, hidden ones left out: a file per split.

    Raises InvalidArgument for a name that is not letters, digits, - and _.
    """
    files = sorted(path for path in (root / "dataset" / task).glob("*.jsonl") if not path.name.startswith("."))
    for path in files:
        if not re.fullmatch(r"[\w-]+", path.stem):
            raise InvalidArgument(f"{path}: a split is named by letters, digits, - and _; rename the file")
    return files


def _split_order(split: str) -> tuple[int, str]:
    return _ORDER.get(split, len(_ORDER)), split


def content_id(text: str, kind: str = "text") -> str:
    """Returns the id of a text that has none of its own, the same in every file: `kind` and a hash of the text."""
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def numbered(names: Iterable[str]) -> list[str]:
    """Makes names unique: the second of equal ones ends in `-2`, and so on."""
    found: dict[str, None] = {}
    for name in names:
        number = 1
        while (unique := name if number == 1 else f"{name}-{number}") in found:
            number += 1
        found[unique] = None
    return list(found)


def read_facts(path: Path) -> dict[str, str]:
    """Reads a fact file: fact id to text; a missing one holds none. Raises InvalidArgument for a malformed one."""
    if not path.is_file():
        return {}
    facts = json_file(path)
    if not isinstance(facts, dict) or not all(isinstance(text, str) for text in facts.values()):
        raise InvalidArgument(f"{path} must hold one JSON object, fact id to text")
    for fact_id, text in facts.items():
        for written in (fact_id, text):
            refuse_half(f"{path}: the fact {fact_id!r}", written)
            if not written.strip():
                raise InvalidArgument(f"{path}: the fact {fact_id!r} needs an id and a text that are not empty")
    return facts
