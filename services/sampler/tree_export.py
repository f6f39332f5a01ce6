"""From what a run accepted to an entailment tree in EntailmentBank's form.

A run's positives may form a graph; the tree keeps each expanded premise under the node that first reached it, and
elsewhere it stands as a plain sentence. Trees without any accepted premise are not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from aeenc.trees import ROOT as ROOT_LABEL
from aeenc.trees import Step, record_from_tree
from aeenc.trees import Tree as EntailmentTree
from services.sampler.acs import ROOT, Node, Tree


def record_json(tree: Tree) -> str | None:
    """One line of an EntailmentBank file, or None when nothing explains the hypothesis."""
    if not _accepts(tree, tree.nodes[ROOT]):
        return None
    sentences: dict[str, str] = {}
    steps: list[Step] = []
    for node in reversed(tree.nodes):  # children come after their parents: deepest steps first, the root's last
        if _accepts(tree, node):
            labels = tuple(dict.fromkeys(_labels(tree, node, sentences)))
            steps.append(Step(labels, _label(node), node.text))
    built = EntailmentTree(
        tree.hypothesis_id, tree.nodes[ROOT].text, {label: text for text, label in sentences.items()}, tuple(steps)
    )
    return json.dumps(record_from_tree(built))


def _labels(tree: Tree, node: Node, sentences: dict[str, str]) -> Iterator[str]:
    expanded = {child.text: child for child in tree.nodes if child.parent == node.ordinal}
    for premise in tree.results[node.ordinal].accepted:
        child = expanded.get(premise.text)
        if child is not None and _accepts(tree, child):
            yield _label(child)
        else:
            yield sentences.setdefault(premise.text, f"sent{len(sentences) + 1}")


def _accepts(tree: Tree, node: Node) -> bool:
    return node.ordinal in tree.results and bool(tree.results[node.ordinal].accepted)


def _label(node: Node) -> str:
    return ROOT_LABEL if node.ordinal == ROOT else f"int{node.ordinal}"
