"""An entailment tree as a value: sentences, steps, and the texts they connect. Not a parser and not a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from aeenc.errors import InvalidTree

ROOT = "hypothesis"


@dataclass(frozen=True)
class Step:
    """One inference: the sentences labelled `premises` entail `text`, which is labelled `conclusion`."""

    premises: tuple[str, ...]
    conclusion: str
    text: str


@dataclass(frozen=True)
class Tree:
    """One entailment tree. `sentences` holds label -> text of the context, leaves and distractors, in file order.

    `record` is the JSON object that it was read from; writing it keeps unknown fields and the order of keys.
    """

    id: str
    hypothesis: str
    sentences: Mapping[str, str]
    steps: tuple[Step, ...]
    question: str = ""
    answer: str = ""
    record: Mapping[str, object] = field(default_factory=dict, repr=False)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The text of every label: sentences, intermediates and `hypothesis`."""
        return {**self.sentences, **{step.conclusion: step.text for step in self.steps}}

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        """The labels of each inner node's premises, the root first; a premise named twice counts once."""
        by_label: dict[str, tuple[str, ...]] = {}
        for step in reversed(self.steps):
            by_label[step.conclusion] = tuple(dict.fromkeys((*by_label.get(step.conclusion, ()), *step.premises)))
        return by_label

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """The labels of the sentences that the proof uses, in the order of their first use."""
        used = (label for step in self.steps for label in step.premises)
        return tuple(dict.fromkeys(label for label in used if label not in self.children))

    @cached_property
    def upward(self) -> tuple[str, ...]:
        """The root and the labels below it, each once, behind all of its premises. Raises InvalidTree for a circle."""
        order: dict[str, None] = {}
        path: dict[str, Iterator[str]] = {ROOT: iter(self.children.get(ROOT, ()))}  # of the label that is looked at
        while path:
            label, left = next(reversed(path.items()))
            child = next((one for one in left if one not in order), None)
            if child is None:
                order[label] = None
                del path[label]
            elif child in path:
                raise InvalidTree(f"the proof is circular: {' -> '.join((*path, child))}")
            else:
                path[child] = iter(self.children.get(child, ()))
        return tuple(order)

    @cached_property
    def depths(self) -> dict[str, int]:
        """The number of steps on the longest way from each label below the root to a leaf, that of the root last."""
        found: dict[str, int] = {}
        for label in self.upward:
            found[label] = max((1 + found[child] for child in self.children.get(label, ())), default=0)
        return found

    def check(self) -> None:
        """Raises InvalidTree unless the steps form one tree under `hypothesis` over known labels."""
        if ROOT not in self.children:
            raise InvalidTree(f"no step concludes the root `{ROOT}`; the last step must end in `-> {ROOT}`")
        for step in self.steps:
            for label in step.premises:
                if label not in self.texts:
                    raise InvalidTree(f"the proof uses {label!r}, which neither the context nor a step defines")
        for label in self.upward:
            if not self.texts[label].strip():
                raise InvalidTree(f"{label!r} is empty; write its text")
