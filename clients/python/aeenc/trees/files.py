"""Tree files: one JSON object a line, in EntailmentBank's layout and notation. Errors name file and line.

A context reads `sent1: … sent2: …`, a proof `sent1 & sent2 -> int1: …; int1 & sent3 -> hypothesis; `.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aeenc.errors import InvalidArgument, InvalidTree
from aeenc.files.lines import parsed, refuse_half, text_lines
from aeenc.files.whole import write_json_lines
from aeenc.trees.tree import ROOT, Step, Tree

_REQUIRED = ("id", "hypothesis", "context", "proof")
_SENTENCE = re.compile(r"(?:^|(?<=\s))(sent\d+): ")
# A step starts at the beginning or after "; ", with labels joined by " & ". Texts may hold `:`, `,` and `;`.
_STEP_START = re.compile(r"(?:^|;\s*)((?:sent|int)\d+(?: & (?:sent|int)\d+)*) -> (int\d+|hypothesis)")
_LABEL = re.compile(r"(?:sent|int)\d+")


def tree_from_record(record: Mapping[str, Any]) -> Tree:
    """Reads a tree from one JSON object of a file. Raises InvalidTree naming the mistake."""
    for name in _REQUIRED:
        if not isinstance(record.get(name), str):
            raise InvalidTree(f"the field {name!r} must be a string")
        refuse_half(f"the field {name!r}", record[name])
    if not record["hypothesis"].strip():
        raise InvalidTree("the hypothesis is empty; write its text")
    tree = Tree(
        id=record["id"],
        hypothesis=record["hypothesis"],
        sentences=parse_context(record["context"]),
        steps=parse_proof(record["proof"], record["hypothesis"]),
        question=str(record.get("question", "")),
        answer=str(record.get("answer", "")),
        record=record,
    )
    tree.check()
    return tree


def record_from_tree(tree: Tree) -> dict[str, Any]:
    """Returns the JSON object that the tree was read from, with its known fields as they are now.

    Raises InvalidTree for a text that reads like a label of the notation: another tree would be read back.
    """
    known = {
        "id": tree.id,
        "question": tree.question,
        "answer": tree.answer,
        "hypothesis": tree.hypothesis,
        "context": format_context(tree.sentences),
        "proof": format_proof(tree.steps),
    }
    read_back: object = None
    with contextlib.suppress(InvalidTree):
        read_back = parse_context(known["context"]), parse_proof(known["proof"], tree.hypothesis)
    if read_back != (dict(tree.sentences), tuple(tree.steps)):
        raise InvalidTree(
            f"tree {tree.id!r}: a text of it reads like labels of a proof or context; write ` sent2: ` and "
            "`; sent1 -> int2: ` otherwise"
        )
    if not tree.record:
        return known
    return {name: known.get(name, value) for name, value in tree.record.items()}


def read_trees(path: Path | str) -> list[Tree]:
    """Reads a tree file. Raises InvalidTree whose message starts with `file:line:`."""
    trees = [tree for _, tree in tree_lines(path)]
    if not trees:
        raise InvalidTree(f"{path}:1: holds no trees; write one JSON object a line")
    return trees


def tree_lines(path: Path | str) -> Iterator[tuple[str, Tree]]:
    """Yields each line of a tree file, with its end, and its tree. Raises InvalidTree as `read_trees` does."""
    try:
        for place, line in text_lines(path):
            if line.strip():
                yield line, tree_at(place, line)
    except InvalidTree:
        raise
    except InvalidArgument as error:
        raise InvalidTree(error.message) from None


def tree_at(place: str, line: str) -> Tree:
    """Reads a tree from a line of a file. Raises InvalidTree whose message starts with `place`."""
    try:
        record = parsed(place, line)
    except InvalidArgument as error:
        raise InvalidTree(error.message) from None
    try:
        if not isinstance(record, dict):
            raise InvalidTree("the line must be a JSON object; write one a line")
        return tree_from_record(record)
    except InvalidArgument as error:
        raise InvalidTree(f"{place}: {error.message}") from None


def write_trees(path: Path | str, trees: Iterable[Tree]) -> None:
    """Writes a tree file; a reader sees the whole old one or the whole new one."""
    write_json_lines(path, map(record_from_tree, trees), ensure_ascii=True)


def parse_context(context: str) -> dict[str, str]:
    """Parses the sentences of a context by label, in order. Raises InvalidTree for stray text or a repeated label."""
    starts = list(_SENTENCE.finditer(context))
    if not starts or context[: starts[0].start()].strip():
        raise InvalidTree("the context must read `sent1: … sent2: …`")
    sentences: dict[str, str] = {}
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        label = start.group(1)
        end = following.start() if following else len(context)
        if label in sentences:
            raise InvalidTree(f"the context defines {label!r} twice; number the sentences")
        sentences[label] = context[start.end() : end].removesuffix(" ") if following else context[start.end() :]
    return sentences


def format_context(sentences: Mapping[str, str]) -> str:
    """Formats sentences by label as a context."""
    return " ".join(f"{label}: {text}" for label, text in sentences.items())


def parse_proof(proof: str, hypothesis: str) -> tuple[Step, ...]:
    """Parses the steps of a proof, in order; the root's text is the hypothesis. Raises InvalidTree."""
    starts = list(_STEP_START.finditer(proof))
    if not starts or starts[0].start() != 0:
        raise InvalidTree("the proof must read `sent1 & sent2 -> int1: …; int1 & sent3 -> hypothesis; `")
    steps = []
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        rest = proof[start.end() : following.start() if following else len(proof)]
        conclusion = start.group(2)
        if conclusion == ROOT:
            if rest.strip(" ;"):
                raise InvalidTree(f"`-> {ROOT}` must end its step; found {rest.strip()[:60]!r} behind it")
            text = hypothesis
        elif not rest.startswith(": "):
            raise InvalidTree(f"the conclusion {conclusion!r} has no text; write `-> {conclusion}: …;`")
        else:
            text = rest[2:].rstrip().removesuffix(";") if following is None else rest[2:]
        steps.append(Step(tuple(_LABEL.findall(start.group(1))), conclusion, text))
    return tuple(steps)


def format_proof(steps: Sequence[Step]) -> str:
    """Formats steps as a proof."""
    return "".join(
        f"{' & '.join(s.premises)} -> {s.conclusion}{'' if s.conclusion == ROOT else f': {s.text}'}; " for s in steps
    )
