"""Predicted entailment trees against gold ones, by the definition of EntailmentBank's published scorer.

    predicted proof ──► its steps ──► leaves of each conclusion ──► aligned with gold conclusions ──► leaves, steps,
                                                                                                       intermediates

A conclusion is aligned with the gold conclusion whose leaves are most alike (Jaccard index; the first of equal ones),
and gets its name; then steps are compared as they are. Leaves are compared by label where the prediction's labels are
those of the gold tree's context, and by text where it brings a context of its own (the tasks 1 and 2, and 3, of Dalvi
et al. 2021). Whether an aligned conclusion also says what gold says is judged by a function of the caller's: the
published scorer takes BLEURT from .28 on. A malformed proof is scored as far as it goes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aeenc.errors import InvalidArgument, InvalidTree
from aeenc.evaluation.leaves import normalised
from aeenc.files.lines import parsed, text_lines
from aeenc.trees import ROOT, Step, Tree
from aeenc.trees.files import parse_context

Similarity = Callable[[list[str], list[str]], Sequence[float]]  # (gold texts, predicted texts) -> a score for each
BLEURT_CORRECT = 0.28
UNMATCHED = "NO_MATCH"  # the name of a conclusion that shares no leaf with gold
_SLOT = re.compile(r"\$proof\$\s*=\s*(.*?)\s*(?:\$\w+\$|$)", re.DOTALL)
_NOISE = re.compile(r"[.\n]|\( | \)")


@dataclass(frozen=True)
class Overlap:
    """Precision, recall and F1 of what was predicted, each in [0, 1]."""

    precision: float
    recall: float
    f1: float

    @property
    def all_correct(self) -> bool:
        """Whether all that is gold was predicted, and nothing else."""
        return self.f1 == 1

    @classmethod
    def of(cls, precision: float, recall: float) -> Overlap:
        """Adds F1 to both."""
        both = precision + recall
        return cls(precision, recall, 2 * precision * recall / both if both else 0.0)


@dataclass(frozen=True)
class Prediction:
    """The steps of a proof, and the sentences that its labels name; None: those of the gold tree's context."""

    steps: tuple[Step, ...] = ()
    sentences: Mapping[str, str] | None = None


@dataclass(frozen=True)
class TreeScore:
    """One predicted tree. `aligned` names a gold conclusion for each predicted one; no `intermediates` without texts'
    similarity.
    """

    id: str
    leaves: Overlap
    steps: Overlap
    aligned: Mapping[str, str]
    intermediates: Overlap | None = None

    @property
    def all_correct(self) -> bool | None:
        """Whether leaves, steps and intermediates are; None without intermediates."""
        if self.intermediates is None:
            return None
        return self.leaves.all_correct and self.steps.all_correct and self.intermediates.all_correct

    def to_dict(self) -> dict[str, Any]:
        """Returns the scores by the names that tables use, without those that need a similarity that was not given."""
        named: dict[str, Any] = {
            "leaves": {"P": self.leaves.precision, "R": self.leaves.recall, **_f1(self.leaves)},
            "steps": _f1(self.steps),
        }
        if self.intermediates is not None:
            named |= {"intermediates": _f1(self.intermediates), "overall": {"AllCorrect": float(self.all_correct or 0)}}
        return named


def _f1(overlap: Overlap) -> dict[str, float]:
    return {"F1": overlap.f1, "AllCorrect": float(overlap.all_correct)}


def mean_scores(scores: Sequence[TreeScore]) -> dict[str, dict[str, float]]:
    """Averages the scores of trees, by the names of `TreeScore.to_dict`. Raises InvalidArgument for none."""
    if not scores:
        raise InvalidArgument("there are no trees to score; give at least one")
    rows = [score.to_dict() for score in scores]
    return {
        part: {name: float(np.mean([one[part][name] for one in rows])) for name in names}
        for part, names in rows[0].items()
    }


def score_trees(
    gold: Sequence[Tree],
    predicted: Sequence[Prediction],
    *,
    similarity: Similarity | None = None,
    threshold: float = BLEURT_CORRECT,
    by_normalised_text: bool = False,
) -> list[TreeScore]:
    """Scores a prediction for each gold tree; `Prediction()` is none, and scores 0.

    An intermediate is right when `similarity` of the aligned gold text and its own is at least `threshold`. Both texts
    are lower-cased and end at a `;`. Leaves that are compared by text are so exactly, as published, or
    `by_normalised_text`. Raises InvalidArgument for another number of predictions, or of scores.
    """
    if len(gold) != len(predicted):
        raise InvalidArgument(f"there are {len(gold)} gold trees and {len(predicted)} predictions; give one for each")
    read = [_scored(tree, one, by_normalised_text) for tree, one in zip(gold, predicted, strict=True)]
    if similarity is None:
        return [score for score, _ in read]
    pairs = [pair for _, texts in read for pair in texts.items()]
    found = _similarities(similarity, pairs)
    right = {pair for pair, value in zip(pairs, found, strict=True) if value >= threshold}
    scores = []
    for tree, (score, texts) in zip(gold, read, strict=True):
        precise = [pair for pair in texts.items() if pair in right]
        precision = len(precise) / max(1, len(score.aligned))
        recall = len({label for _, label in precise}) / len(tree.children)
        scores.append(replace(score, intermediates=Overlap.of(precision, recall)))
    return scores


def _scored(gold: Tree, predicted: Prediction, by_normalised_text: bool) -> tuple[TreeScore, dict[str, str]]:
    """Scores leaves and steps; beside them the text of each aligned conclusion with that of gold."""
    sentences = predicted.sentences
    names_of_gold = _leaf_names(gold.steps, None if sentences is None else gold.sentences, by_normalised_text)
    names = _leaf_names(predicted.steps, sentences, by_normalised_text)
    leaves, leaves_of_gold = _leaves(predicted.steps, names), _leaves(gold.steps, names_of_gold)
    aligned = {label: _nearest(found, leaves_of_gold) for label, found in leaves.items()}
    text_of = {step.conclusion: step.text for step in gold.steps}
    texts = {
        _plain(step.text): _plain(text_of[aligned[step.conclusion]])
        for step in {step.conclusion: step for step in predicted.steps}.values()
        if aligned[step.conclusion] != UNMATCHED
    }
    score = TreeScore(
        gold.id,
        _overlap(sorted(set(names.values())), set(names_of_gold.values())),
        _overlap(list(_named(predicted.steps, {**names, **aligned})), set(_named(gold.steps, names_of_gold))),
        aligned,
    )
    return score, texts


def _leaf_names(steps: Sequence[Step], sentences: Mapping[str, str] | None, normal: bool) -> dict[str, str]:
    """Names each leaf that the steps use: by its label, or by its text where `sentences` are given."""
    labels = dict.fromkeys(label for step in steps for label in step.premises if "sent" in label)
    if sentences is None:
        return {label: label for label in labels}
    texts = {label: sentences.get(label, "") for label in labels}
    return {label: normalised(text) if normal else text for label, text in texts.items()}


def _leaves(steps: Sequence[Step], names: Mapping[str, str]) -> dict[str, set[str]]:
    """Lists the leaves below each conclusion, in the order of the proof; what is concluded later is not below it."""
    below: dict[str, set[str]] = {}
    for step in steps:
        found = [{names[label]} if label in names else below.get(label, set()) for label in step.premises]
        below[step.conclusion] = set().union(*found)
    return below


def _nearest(leaves: set[str], of_gold: Mapping[str, set[str]]) -> str:
    best, most = UNMATCHED, 0.0
    for label, gold in of_gold.items():
        alike = len(leaves & gold) / max(1, len(leaves | gold))
        if alike > most:
            best, most = label, alike
    return best


def _named(steps: Sequence[Step], names: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], str]]:
    for step in steps:
        premises = sorted(names.get(label, label) for label in step.premises)
        yield tuple(premises), names.get(step.conclusion, step.conclusion)


def _overlap(predicted: Sequence[object], gold: set[Any]) -> Overlap:
    """Compares what was predicted with gold; what is predicted twice counts against precision."""
    common = len(set(predicted) & gold)
    return Overlap.of(common / max(1, len(predicted)), common / len(gold))


def _plain(text: str) -> str:
    return _NOISE.sub("", text.partition(";")[0].replace("  ", " ")).lower().strip()


def _similarities(similarity: Similarity, pairs: Sequence[tuple[str, str]]) -> list[float]:
    if not pairs:
        return []
    found = [float(value) for value in similarity([gold for _, gold in pairs], [text for text, _ in pairs])]
    if len(found) != len(pairs) or not all(map(math.isfinite, found)):
        raise InvalidArgument(
            f"the similarity gave {len(found)} scores for {len(pairs)} pairs, or one that is no finite number; give a "
            "function of two lists of texts (gold, predicted) that returns a score for each pair"
        )
    return found


def proof_steps(proof: str, hypothesis: str) -> tuple[Step, ...]:
    """Reads the steps of a predicted proof, and passes over what is none: a prover's proof may be malformed."""
    steps = []
    for part in proof.split(";"):
        head, _, text = part.strip().partition(":")
        sides = head.split(" -> ")
        if len(sides) == 2:
            labels = tuple(label.strip() for label in re.split("[&,]", sides[0]))
            conclusion = sides[1].strip()
            steps.append(Step(labels, conclusion, hypothesis if conclusion == ROOT else text.strip()))
    return tuple(steps)


def read_predictions(path: Path | str, gold: Sequence[Tree]) -> list[Prediction]:
    """Reads a prediction for each gold tree; `Prediction()` where the file has none.

    The file has a line `$proof$ = …` for each gold tree, in their order, or lines of JSON, found by their `hypothesis`
    or, where they tell none, by `id`: with `proof` (or `prediction`), and, if its labels are not those of the gold
    tree, with `context`, as `aeenc export trees` writes them. Raises InvalidArgument that names file and line.
    """
    lines = list(text_lines(path))
    if not any(line.lstrip().startswith("{") for _, line in lines[:1]):
        if len(lines) != len(gold):
            raise InvalidArgument(
                f"{path} has {len(lines)} lines for {len(gold)} gold trees; give a line for each tree, in their order, "
                "or lines of JSON with ids"
            )
        return [_prediction(line, tree) for (_, line), tree in zip(lines, gold, strict=True)]
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for place, line in lines:
        if line.strip():
            record = _record(place, parsed(place, line))
            keys = {(record["id"], record["hypothesis"]), ("", record["hypothesis"])}
            if (record["id"], record["hypothesis"]) in found:
                raise InvalidArgument(f"{place}: the tree {record['id']!r} was predicted before; leave one out")
            found |= {key: record for key in keys if any(key) and key not in found}
    read = [next((found[key] for key in _keys(tree) if key in found), None) for tree in gold]
    if gold and not any(read):
        raise InvalidArgument(f"{path} has no proof of any gold tree; give predictions and gold trees of one split")
    return [
        Prediction() if record is None else _prediction(record["proof"], tree, record["sentences"])
        for record, tree in zip(read, gold, strict=True)
    ]


def _keys(tree: Tree) -> tuple[tuple[str, str], ...]:
    return (tree.id, tree.hypothesis), ("", tree.hypothesis), (tree.id, "")


def _record(place: str, record: object) -> dict[str, Any]:
    if not isinstance(record, dict) or not isinstance(record.get("id"), str):
        raise InvalidArgument(f"{place}: the line must be a JSON object with a string `id`; write one a line")
    proof = record.get("proof", record.get("prediction"))
    if not isinstance(proof, str):
        raise InvalidArgument(f"{place}: `proof` (or `prediction`) must be a string; write an empty one for no proof")
    context = record.get("context") or ""
    try:
        sentences = parse_context(context) if context else None
    except (InvalidTree, TypeError):
        raise InvalidArgument(f"{place}: the context must read `sent1: … sent2: …`") from None
    return {"id": record["id"], "hypothesis": str(record.get("hypothesis") or ""), "proof": proof} | {
        "sentences": sentences
    }


def _prediction(text: str, gold: Tree, sentences: Mapping[str, str] | None = None) -> Prediction:
    slot = _SLOT.search(text)
    return Prediction(proof_steps(slot[1] if slot else text, gold.hypothesis), sentences)
