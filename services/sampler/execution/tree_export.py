"""Turns what a run accepted into entailment trees in EntailmentBank's form.

A run's positives may form a graph. The tree keeps each expanded premise under the node that first reached it; elsewhere
the premise is a plain sentence. What an amendment took back is left out with everything below it; what an amendment
accepted later is a plain sentence. An intermediate that people wrote stands in the tree where it is explained, with its
authors; without an explanation it is left out, for it is no premise. Trees that nothing explains are not written.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from aeenc.trees import ROOT as ROOT_LABEL
from aeenc.trees import Step, record_from_tree
from aeenc.trees import Tree as EntailmentTree
from services.sampler.acs.algorithm import ROOT, Node, Tree
from services.sampler.records.node_store import Amended, explaining


def record_json(tree: Tree, amended: Mapping[str, Amended]) -> str | None:
    """One line of an EntailmentBank file, or None when nothing explains the hypothesis. `amended` is by query."""
    accepted = _reachable(tree, amended)
    children: dict[int, dict[str, Node]] = defaultdict(dict)
    for node in tree.nodes:
        children[node.parent][node.text] = node
    sentences: dict[str, str] = {}
    steps: list[Step] = []
    explained: set[int] = set()
    authors: dict[str, str] = {}
    for node in reversed(tree.nodes):  # children come after their parents: deepest steps first, the root's last
        labels = []
        written = _written(tree, node)
        for text in accepted.get(node.ordinal, ()):
            child = children[node.ordinal].get(text)
            if child is not None and child.ordinal in explained:
                labels.append(_label(child))
            elif text not in written:
                labels.append(sentences.setdefault(text, f"sent{len(sentences) + 1}"))
        if labels:
            explained.add(node.ordinal)
            if node.author:
                authors[_label(node)] = node.author
            steps.append(Step(tuple(labels), _label(node), node.text))
    if ROOT not in explained:
        return None
    built = EntailmentTree(
        tree.hypothesis_id,
        tree.nodes[ROOT].text,
        {label: text for text, label in sentences.items()},
        tuple(steps),
        tree.question,
        tree.answer,
    )
    record = record_from_tree(built)
    return json.dumps({**record, "authors": authors} if authors else record)


def _reachable(tree: Tree, amended: Mapping[str, Amended]) -> dict[int, list[str]]:
    """The texts that explain each judged node that still hangs on the root."""
    accepted: dict[int, list[str]] = {}
    for node in tree.nodes:  # parents come first
        hangs = node.ordinal == ROOT or node.text in accepted.get(node.parent, ())
        if hangs and node.ordinal in tree.results:
            accepted[node.ordinal] = [one.text for one in explaining(tree, node, amended.get(node.text, {}))]
    return accepted


def _written(tree: Tree, node: Node) -> set[str]:
    """The intermediates that people wrote for a node."""
    return (
        {one.text for one in tree.results[node.ordinal].accepted if one.author}
        if node.ordinal in tree.results
        else set()
    )


def _label(node: Node) -> str:
    return ROOT_LABEL if node.ordinal == ROOT else f"int{node.ordinal}"
