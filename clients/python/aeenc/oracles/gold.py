"""An oracle that answers from gold trees or rated facts: it stands in for a person where the answers are known.

A query's gold is the union of its children over all trees of a split, or what is rated above 0. The oracle compares
exact texts. It leaves the candidates of a query that is not among these UNSEEN instead of refusing them.
"""

from __future__ import annotations

from typing import Literal, get_args

from aeenc.errors import InvalidArgument
from aeenc.evaluation import Source, gold_of, grades_of
from aeenc.oracle import EXPLAINS, REFUSES, UNSEEN, Answer, Oracle, Task, Verdict

Mode = Literal["direct", "subtree"]


class GoldOracle(Oracle):
    """Answers from one split.

    `direct` accepts a query's gold children; `subtree` also their descendants. An accepted premise without gold
    children of its own is a leaf. With `steps`, it says of a node whether all of these are accepted by now, or one is
    missing. Raises NotFound for an unknown split.
    """

    name = "gold"

    def __init__(self, dataset: Source, split: str, *, mode: Mode = "direct", steps: bool = False) -> None:
        if mode not in get_args(Mode):
            raise InvalidArgument.field("mode", f"is {mode!r}; give direct or subtree")
        gold = ((query, grades_of(premises)) for query, premises in gold_of(dataset, split))
        self._children = {query: frozenset(text for text, grade in told.items() if grade) for query, told in gold}
        self._below, self._steps = self._children, steps
        if mode == "subtree":
            self._below = {text: self._descendants(text) for text in self._children}

    def judge(self, task: Task) -> dict[str, Verdict] | Answer[dict[str, Verdict]]:
        """Explains or refuses each candidate of a known query; leaves every candidate of an unknown one unseen."""
        gold = self._below.get(task.query)
        if gold is None:
            return {candidate.id: Verdict(UNSEEN) for candidate in task.candidates}
        verdicts = {
            candidate.id: Verdict(EXPLAINS, leaf=candidate.text not in self._children)
            if candidate.text in gold
            else Verdict(REFUSES)
            for candidate in task.candidates
        }
        if not self._steps:
            return verdicts
        known = {one.text for one in (*task.accepted, *task.candidates)}
        return Answer(verdicts, node_verdict="complete" if gold <= known else "premise_missing")

    def _descendants(self, text: str) -> frozenset[str]:
        found: set[str] = set()
        waiting = [text]
        while waiting:
            new = self._children.get(waiting.pop(), frozenset()) - found
            found |= new
            waiting.extend(new)
        return frozenset(found - {text})
