"""Turns what a run accepted into entailment trees in EntailmentBank's form.

A run's positives may form a graph. The tree keeps each expanded premise under the node that first reached it; elsewhere
the premise is a plain sentence. What an amendment took back is left out with everything below it; what an amendment
accepted later is a plain sentence. Trees without an accepted premise are not written.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from aeenc.trees import ROOT as ROOT_LABEL
from aeenc.trees import Step, record_from_tree
from aeenc.trees import Tree as EntailmentTree
from services.sampler.acs.algorithm import ROOT, Node, Tree
from services.sampler.records.runs import Pair


class Amendments:
    """Changes made after the run went on: the last amended pair of each query and premise."""

    def __init__(self, amended: Iterable[Pair] = ()) -> None:
        self._by_query: dict[str, dict[str, Pair]] = defaultdict(dict)
        for pair in amended:
            self._by_query[pair.query][pair.premise_id] = pair

    def accepted(self, tree: Tree, node: Node) -> list[str]:
        """The texts that explain a node, best rank first; those that an amendment added come last."""
        if node.ordinal not in tree.results:
            return []
        amended = self._by_query.get(node.text, {})
        accepted = tree.results[node.ordinal].accepted
        texts = [one.text for one in accepted if one.id not in amended or amended[one.id].sign == "POSITIVE"]
        texts += [pair.premise for pair in amended.values() if pair.sign == "POSITIVE"]
        return list(dict.fromkeys(texts))


def record_json(tree: Tree, amended: Amendments) -> str | None:
    """One line of an EntailmentBank file, or None when nothing explains the hypothesis."""
    accepted = _reachable(tree, amended)
    if not accepted[ROOT]:
        return None
    children: dict[int, dict[str, Node]] = defaultdict(dict)
    for node in tree.nodes:
        children[node.parent][node.text] = node
    sentences: dict[str, str] = {}
    steps: list[Step] = []
    for node in reversed(tree.nodes):  # children come after their parents: deepest steps first, the root's last
        labels = []
        for text in accepted.get(node.ordinal, ()):
            child = children[node.ordinal].get(text)
            if child is not None and accepted.get(child.ordinal):
                labels.append(_label(child))
            else:
                labels.append(sentences.setdefault(text, f"sent{len(sentences) + 1}"))
        if labels:
            steps.append(Step(tuple(labels), _label(node), node.text))
    built = EntailmentTree(
        tree.hypothesis_id, tree.nodes[ROOT].text, {label: text for text, label in sentences.items()}, tuple(steps)
    )
    return json.dumps(record_from_tree(built))


def _reachable(tree: Tree, amended: Amendments) -> dict[int, list[str]]:
    """The texts that explain each node that still hangs on the root."""
    accepted: dict[int, list[str]] = {}
    for node in tree.nodes:  # parents come first
        if node.ordinal == ROOT or node.text in accepted.get(node.parent, ()):
            accepted[node.ordinal] = amended.accepted(tree, node)
    return accepted


def _label(node: Node) -> str:
    return ROOT_LABEL if node.ordinal == ROOT else f"int{node.ordinal}"
