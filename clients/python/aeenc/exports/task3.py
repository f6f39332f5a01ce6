"""EntailmentBank's Task 3 lines: hypotheses with the sentences retrieved for each, as provers read them.

    {"id": …, "context": "sent1: … sent2: …", "question": …, "answer": …, "hypothesis": …, "proof": "",
     "meta": {"question_text": …, "answer_text": …, "triples": {"sent1": …, …}}}

The sentences stand best first. A fact is one entry, in whatever forms it was found; what trees conclude is none: it is
the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

from aeenc.errors import InvalidTree
from aeenc.evaluation.leaves import normalised
from aeenc.files.whole import write_json_lines
from aeenc.trees import Tree
from aeenc.trees.files import format_context, parse_context


def conclusions_of(trees: Iterable[Tree]) -> set[str]:
    """Lists what trees conclude, hypotheses included, as normalised texts."""
    return {normalised(tree.texts[label]) for tree in trees for label in tree.children}


def task3_sentences(ranked: Iterable[str], conclusions: Collection[str], k: int = 25) -> list[str]:
    """Returns the first k facts of a ranking, each in its first form, without conclusions."""
    facts: dict[str, str] = {}
    for text in ranked:
        facts.setdefault(normalised(text), text)
    return [text for words, text in facts.items() if words not in conclusions][:k]


def task3_record(tree: Tree, sentences: Sequence[str]) -> dict[str, Any]:
    """Returns the line of a tree's hypothesis, without its proof.

    Raises InvalidTree for a sentence that reads like labels of a context.
    """
    labelled = {f"sent{number}": text for number, text in enumerate(sentences, start=1)}
    context = format_context(labelled)
    if labelled and parse_context(context) != labelled:
        raise InvalidTree(f"tree {tree.id!r}: a sentence found for it reads like labels; write ` sent2: ` otherwise")
    return {
        "id": tree.id,
        "context": context,
        "question": tree.question,
        "answer": tree.answer,
        "hypothesis": tree.hypothesis,
        "proof": "",
        "meta": {"question_text": tree.question, "answer_text": tree.answer, "triples": labelled},
    }


def write_task3(path: Path | str, trees: Sequence[Tree], lists: Sequence[Sequence[str]]) -> None:
    """Writes a line for each tree with its list of sentences. A reader sees the whole file or none of it."""
    write_json_lines(path, starmap(task3_record, zip(trees, lists, strict=True)), ensure_ascii=True)
