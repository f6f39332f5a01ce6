"""Tree files: one JSON object a line, in EntailmentBank's layout. What cannot be read is named by file and line."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aeenc.errors import InvalidTree
from aeenc.trees.proof import format_context, format_proof, parse_context, parse_proof
from aeenc.trees.tree import Tree

_REQUIRED = ("id", "hypothesis", "context", "proof")


def tree_from_record(record: Mapping[str, Any]) -> Tree:
    """A tree from one JSON object of a file. Raises InvalidTree saying what is wrong."""
    for name in _REQUIRED:
        if not isinstance(record.get(name), str):
            raise InvalidTree(f"the field {name!r} is missing or no string")
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
    """The JSON object of a tree: that it was read from, with its known fields as the tree has them now."""
    known = {
        "id": tree.id,
        "question": tree.question,
        "answer": tree.answer,
        "hypothesis": tree.hypothesis,
        "context": format_context(tree.sentences),
        "proof": format_proof(tree.steps),
    }
    if not tree.record:
        return known
    return {name: known.get(name, value) for name, value in tree.record.items()}


def read_trees(path: Path | str) -> list[Tree]:
    """Reads a tree file. Raises InvalidTree whose message starts with `file:line:`."""
    trees = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    trees.append(_tree_from_line(line))
                except InvalidTree as error:
                    raise InvalidTree(f"{path}:{number}: {error.message}") from None
    return trees


def write_trees(path: Path | str, trees: Iterable[Tree]) -> None:
    """Writes a tree file as a whole: a reader sees the old one or the new one."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for tree in trees:
                file.write(json.dumps(record_from_tree(tree)) + "\n")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _tree_from_line(line: bytes) -> Tree:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidTree(f"not UTF-8 ({error.reason}); save the file as UTF-8") from None
    except ValueError as error:
        raise InvalidTree(f"no JSON ({error}); write one JSON object a line") from None
    if not isinstance(record, dict):
        raise InvalidTree("the line is no JSON object; write one a line")
    return tree_from_record(record)
