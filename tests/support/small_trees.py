"""A small directory in EntailmentBank's layout: two train trees of one hypothesis, and a dev tree."""

from __future__ import annotations

import json
from pathlib import Path


def record(name: str, hypothesis: str, context: str, proof: str) -> dict[str, str]:
    return {"id": name, "hypothesis": hypothesis, "context": context, "proof": proof, "question": "", "answer": ""}


TRAIN = (
    record(
        "one",
        "the nail moves",
        "sent1: iron is magnetic sent2: a magnet pulls iron sent3: a nail is iron",
        "sent1 & sent2 -> int1: the magnet pulls the nail; int1 & sent3 -> hypothesis; ",
    ),
    record("two", "the nail moves", "sent1: forces move things", "sent1 -> hypothesis; "),
)
DEV = (record("three", "ice floats", "sent1: ice is light", "sent1 -> hypothesis; "),)


def write_small_trees(folder: Path, *more: dict[str, str]) -> Path:
    """Writes the trees, and `more` of train, into a folder that does not exist yet."""
    task_1 = folder / "dataset" / "task_1"
    task_1.mkdir(parents=True)
    for split, records in (("train", (*TRAIN, *more)), ("dev", DEV)):
        (task_1 / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder
