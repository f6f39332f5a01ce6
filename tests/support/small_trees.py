"""A small directory in EntailmentBank's layout: two train trees of one hypothesis, and a dev tree."""

from __future__ import annotations

import json
from pathlib import Path


def record(name: str, hypothesis: str, context: str, proof: str) -> dict[str, str]:
    return {"id": name, "hypothesis": hypothesis, "context": context, "proof": proof, "question": "", "answer": ""}


def of_one_step(name: str, hypothesis: str, *leaves: str) -> dict[str, str]:
    """A tree in which all leaves together explain the hypothesis."""
    labels = [f"sent{n}" for n in range(1, len(leaves) + 1)]
    context = " ".join(f"{label}: {leaf}" for label, leaf in zip(labels, leaves, strict=True))
    return record(name, hypothesis, context, " & ".join(labels) + " -> hypothesis; ")


TRAIN = (
    record(
        "one",
        "the nail moves",
        "sent1: iron is magnetic sent2: a magnet pulls iron sent3: a nail is iron",
        "sent1 & sent2 -> int1: the magnet pulls the nail; int1 & sent3 -> hypothesis; ",
    ),
    of_one_step("two", "the nail moves", "forces move things"),
)
DEV = (of_one_step("three", "ice floats", "ice is light"),)


def write_small_trees(folder: Path, *more: dict[str, str]) -> Path:
    """Writes the trees, and `more` of train, into a folder that does not exist yet."""
    task_1 = folder / "dataset" / "task_1"
    task_1.mkdir(parents=True)
    for split, records in (("train", (*TRAIN, *more)), ("dev", DEV)):
        (task_1 / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder
