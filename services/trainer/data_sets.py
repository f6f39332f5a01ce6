"""What jobs can learn from besides runs: the data sets that the operator has named, as judged pairs.

A directory in EntailmentBank's layout gives the gold trees of the job's split: what explains a query, and the
distractors beside it as refused. A file of JSON lines gives pairs judged elsewhere, triplets, or pairs of natural
language inference, whose hypothesis is our query; each line says by its keys which it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aeenc.errors import FailedPrecondition, InvalidArgument, NotFound
from aeenc.trees import Dataset
from services.trainer.training_set import JudgedPair, Sign

_LABELS: dict[str, Sign] = {"entailment": "POSITIVE", "neutral": "NEGATIVE", "contradiction": "CONTRADICTED"}
_SIGNS: dict[str, Sign] = {"positive": "POSITIVE", "negative": "NEGATIVE", "skipped": "SKIPPED"}
_NO_LABEL = "-"  # SNLI's annotators did not agree


class DataSets:
    """The data sets of one deployment, by name. Reading one takes seconds: not for the event loop."""

    def __init__(self, paths: Mapping[str, Path], text_bytes: int) -> None:
        self._paths, self._text_bytes = paths, text_bytes

    def check(self, names: Sequence[str], split: str) -> None:
        """Raises NotFound for a name that is none, InvalidArgument for gold trees without the split to take them from.

        Reads no tree.
        """
        for name in names:
            path = self._paths.get(name)
            if path is None:
                known = ", ".join(sorted(self._paths)) or "none"
                raise NotFound(f"no data set {name!r}; AEENC_TRAINER_DATA_SETS names: {known}")
            if not path.exists():
                raise FailedPrecondition(f"data set {name!r} is not there ({path}); correct AEENC_TRAINER_DATA_SETS")
            if not path.is_dir():
                continue
            if not split:
                raise InvalidArgument.field("config.split", f"is empty; data set {name!r} holds trees by split")
            if split not in (splits := Dataset.splits_in(path)):
                raise InvalidArgument.field("config.split", f"is {split!r}; data set {name!r} has {', '.join(splits)}")

    def read(self, names: Sequence[str], split: str) -> tuple[list[JudgedPair], set[str]]:
        """All pairs of data sets, in their order; and the texts that stand in trees of other splits alone.

        Raises InvalidArgument naming file and line for what is no pair.
        """
        pairs: list[JudgedPair] = []
        held_out: set[str] = set()
        for path in (self._paths[name] for name in names):
            if path.is_dir():
                dataset = Dataset.load(path)
                pairs.extend(_gold(dataset, split))
                held_out |= _foreign(dataset, split)
            else:
                pairs.extend(self._lines(path))
        return pairs, held_out

    def _lines(self, path: Path) -> Iterator[JudgedPair]:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    pairs = _pairs_of(json.loads(line.decode()))
                    texts = [text for pair in pairs for text in (pair.query, pair.premise, pair.premise_id)]
                    sizes = [len(text.encode()) for text in texts]
                except UnicodeDecodeError as error:
                    raise InvalidArgument(
                        f"{path}:{number} is not UTF-8 (byte {error.start + 1} is 0x{line[error.start]:02x}); save the "
                        "file as UTF-8"
                    ) from None
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    raise InvalidArgument(
                        f"{path}:{number} is no pair; give query, positive, negative, or query, premise, sign, or "
                        "premise, hypothesis, label"
                    ) from None
                if max(sizes, default=0) > self._text_bytes:
                    raise InvalidArgument(f"{path}:{number} has a text over {self._text_bytes} bytes; shorten it")
                yield from pairs


def _pairs_of(record: Mapping[str, Any]) -> list[JudgedPair]:
    """The pairs of a line. Raises KeyError or TypeError for one that has none."""
    if "hypothesis" in record:
        label = record["label"]
        return [] if label == _NO_LABEL else [_pair(record["hypothesis"], record["premise"], _LABELS[label])]
    if "positive" in record:
        query = record["query"]
        return [_pair(query, record["positive"], "POSITIVE"), _pair(query, record["negative"], "NEGATIVE")]
    sign = _SIGNS[record["sign"].lower()]
    return [_pair(record["query"], record.get("premise", ""), sign, record.get("premise_id", ""))]


def _pair(query: Any, premise: Any, sign: Sign, premise_id: Any = "") -> JudgedPair:
    if not all(isinstance(text, str) for text in (query, premise, premise_id)) or not query or not premise + premise_id:
        raise TypeError
    return JudgedPair(query, premise_id, premise, sign)


def _gold(dataset: Dataset, split: str) -> Iterator[JudgedPair]:
    """Every query's children in any tree of the split, and the distractors of its trees that are none of them."""
    gold = {(query.text, premise): None for query in dataset.queries(split) for premise in query.gold}
    for query, premise in gold:
        yield JudgedPair(query, "", premise, "POSITIVE", split)
    refused = {(query, distractor): None for query, _, distractor in dataset.distractor_triplets(split)}
    for query, distractor in refused:
        if (query, distractor) not in gold:
            yield JudgedPair(query, "", distractor, "NEGATIVE", split)


def _foreign(dataset: Dataset, split: str) -> set[str]:
    own = {text for tree in dataset.trees(split) for text in tree.texts.values()} | set(dataset.facts.values())
    others = [tree for name in dataset.splits if name != split for tree in dataset.trees(name)]
    return {text for tree in others for text in tree.texts.values()} - own
