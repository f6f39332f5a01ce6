"""Sources of judged pairs: runs, read from the sampler, and data sets that the operator has named.

A data set is a directory in the layout of EntailmentBank, TextGraphs-2021 or BEIR, or a file of JSON lines. The former
gives the gold trees of the job's split: a query's children as positives, the distractors of its trees as refused; the
others their rated facts: those of grade 0 as refused. The keys of a line tell a judged or rated pair, a triplet and a
pair of natural language inference apart; the hypothesis of the last is our query.

A data set of kind `nli` (`nli:PATH`) is natural language inference the other way round, as sentence encoders are
trained on it: the premise is the anchor, entailed hypotheses explain it, those that contradict it are refused, neutral
ones are neither. It has the lines of SNLI and MultiNLI, labels by name or by number, or AllNLI's triplets and pairs.

A data set of kind `analogy` (`analogy:PATH`) is answer selection, a directory or a file as `aeenc.evaluation.answers`
reads them: right answers explain a question, wrong ones are refused, and questions have a class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import Any

from aeenc.errors import FailedPrecondition, InvalidArgument, NotFound
from aeenc.evaluation import Question, RatedDataset, answer_splits, load_data, read_answers, splits_in
from aeenc.evaluation.graded import MAX_GRADE, check_grade
from aeenc.files.lines import json_lines
from aeenc.sampler import SamplerClient
from aeenc.trees import Dataset
from services.kit.logs import get
from services.trainer.jobs.training_set import JudgedPair, Sign

log = get(__name__)

_LABELS: dict[str | int, Sign] = {"entailment": "POSITIVE", "neutral": "NEGATIVE", "contradiction": "CONTRADICTED"}
_SIGNS: dict[str, Sign] = {"positive": "POSITIVE", "negative": "NEGATIVE", "skipped": "SKIPPED"}
_SAMPLER_SIGNS: dict[int, Sign] = {1: "POSITIVE", 2: "NEGATIVE", 3: "SKIPPED"}  # of a Pair message
_NO_LABEL = "-"  # SNLI's annotators did not agree
_NLI, _ANALOGY = "nli:", "analogy:"  # before the path of a data set of this kind
_NLI_SIGNS: dict[str | int, Sign] = {**_LABELS, "neutral": "NEUTRAL", _NO_LABEL: "SKIPPED"}
_NLI_SIGNS |= {0: "POSITIVE", 1: "NEUTRAL", 2: "CONTRADICTED", -1: "SKIPPED"}
_FORMS = (
    "query, positive, negative, or query, premise, sign, or query, premise, grade (0 to 100), or premise, hypothesis, "
    "label"
)
_NLI_FORMS = "gold_label, sentence1, sentence2, or premise, hypothesis, label, or anchor, positive, negative"


class DataSets:
    """The data sets of one deployment, by name. Reading one takes seconds: do it off the event loop."""

    def __init__(self, paths: Mapping[str, Path], text_bytes: int) -> None:
        self._paths = {name: Path(str(path).removeprefix(_NLI).removeprefix(_ANALOGY)) for name, path in paths.items()}
        self._nli = {name for name, path in paths.items() if str(path).startswith(_NLI)}
        self._analogy = {name for name, path in paths.items() if str(path).startswith(_ANALOGY)}
        self._text_bytes = text_bytes

    def check(self, names: Sequence[str], split: str) -> None:
        """Raises NotFound for an unknown name, InvalidArgument for a directory without the split. Reads no tree."""
        for name in names:
            path = self._paths.get(name)
            if path is None:
                known = ", ".join(sorted(self._paths)) or "none"
                raise NotFound(f"there is no data set {name!r}; AEENC_TRAINER_DATA_SETS names: {known}")
            if not path.exists():
                raise FailedPrecondition(f"data set {name!r} is missing ({path}); correct AEENC_TRAINER_DATA_SETS")
            if name in self._nli and path.is_dir():
                raise FailedPrecondition(f"data set {name!r} is a directory ({path}); kind nli is a file of JSON lines")
            if not path.is_dir():
                continue
            if not split:
                raise InvalidArgument.field("config.split", f"is empty; data set {name!r} has several splits")
            splits = answer_splits(path) if name in self._analogy else splits_in(path)
            if split not in splits:
                raise InvalidArgument.field("config.split", f"is {split!r}; data set {name!r} has {', '.join(splits)}")

    def read(self, names: Sequence[str], split: str) -> tuple[list[JudgedPair], set[str]]:
        """Reads all pairs of data sets, in their order, and the texts that stand only in trees of other splits.

        Raises what `check` does, and InvalidArgument naming file and line for a line without a pair.
        """
        self.check(names, split)  # of a job that has waited, they may be others now
        pairs: list[JudgedPair] = []
        held_out: set[str] = set()
        for name in names:
            path = self._paths[name]
            if name in self._nli:
                pairs.extend(self._inferences(path))
            elif name in self._analogy:
                questions = read_answers(path)
                pairs.extend(self._answered(path, questions, split if path.is_dir() else ""))
                asked = {one: {question.text for question in of} for one, of in questions.items()}
                held_out |= _only_elsewhere(asked, split)
            elif path.is_dir() and isinstance(dataset := load_data(path), RatedDataset):
                pairs.extend(_rated(dataset, split))
                held_out |= _only_elsewhere({one: dict(dataset.queries(one)).keys() for one in dataset.splits}, split)
            elif path.is_dir() and isinstance(dataset, Dataset):
                pairs.extend(_gold(dataset, split))
                trees = {one: [tree.texts.values() for tree in dataset.trees(one)] for one in dataset.splits}
                texts = {one: set(chain.from_iterable(of_trees)) for one, of_trees in trees.items()}
                held_out |= _only_elsewhere(texts, split) - set(dataset.facts.values())
            else:
                pairs.extend(self._lines(path, _pairs_of, _FORMS))
        return pairs, held_out

    def _inferences(self, path: Path) -> list[JudgedPair]:
        """Reads a data set of kind nli, without the lines that its annotators did not agree on; logs their number."""
        found = list(self._lines(path, _inferences_of, _NLI_FORMS))
        agreed = [pair for pair in found if pair.sign != "SKIPPED"]
        if skipped := len(found) - len(agreed):
            log.info("skipped lines without a label", path=str(path), lines=skipped, pairs=len(agreed))
        return agreed

    def _answered(self, path: Path, questions: Mapping[str, Sequence[Question]], split: str) -> Iterator[JudgedPair]:
        for question in questions[split]:
            for answer, right in question.answers.items():
                if max(len(question.text.encode()), len(answer.encode())) > self._text_bytes:
                    raise InvalidArgument(
                        f"{path}: question {question.text[:80]!r} has a text over {self._text_bytes} bytes; shorten it"
                    )
                sign: Sign = "POSITIVE" if right else "NEGATIVE"
                yield JudgedPair(question.text, "", answer, sign, split, split, question_class=question.question_class)

    def _lines(self, path: Path, pairs_of: Callable[[Any], list[JudgedPair]], forms: str) -> Iterator[JudgedPair]:
        for place, record in json_lines(path):
            try:
                pairs = pairs_of(record)
                texts = [text for pair in pairs for text in (pair.query, pair.premise, pair.premise_id)]
                sizes = [len(text.encode()) for text in texts]
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, InvalidArgument):
                raise InvalidArgument(f"{place} has no pair; give {forms}") from None
            if max(sizes, default=0) > self._text_bytes:
                raise InvalidArgument(f"{place} has a text over {self._text_bytes} bytes; shorten it")
            yield from pairs


def _pairs_of(record: Mapping[str, Any]) -> list[JudgedPair]:
    """Reads the pairs of a line. Raises KeyError or TypeError if it has none."""
    if "hypothesis" in record:
        label = record["label"]
        return [] if label == _NO_LABEL else [_pair(record["hypothesis"], record["premise"], _LABELS[label])]
    if "positive" in record:
        query = record["query"]
        return [_pair(query, record["positive"], "POSITIVE"), _pair(query, record["negative"], "NEGATIVE")]
    if (told := record.get("sign")) is None:
        grade = check_grade(_number(record["grade"]))
        sign: Sign = "POSITIVE" if grade else "NEGATIVE"
    else:
        sign = _SIGNS[told.lower()]
        grade = _usable(_number(record.get("grade") or 0.0), sign)
    return [_pair(record["query"], record.get("premise", ""), sign, record.get("premise_id", ""), grade)]


def _inferences_of(record: Mapping[str, Any]) -> list[JudgedPair]:
    """Reads the pairs of a line of kind nli. Raises KeyError or TypeError if it has none."""
    if "anchor" in record:
        anchor, negative = record["anchor"], record.get("negative")
        entailed = _pair(anchor, record["positive"], "POSITIVE")
        return [entailed, _pair(anchor, negative, "CONTRADICTED")] if negative is not None else [entailed]
    if "gold_label" in record:
        return [_pair(record["sentence1"], record["sentence2"], _NLI_SIGNS[record["gold_label"]])]
    label = record["label"]
    if isinstance(label, bool):
        raise TypeError
    return [_pair(record["premise"], record["hypothesis"], _NLI_SIGNS[label])]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _usable(grade: float, sign: Sign) -> float:
    """Returns the grade of a judged pair, 0 where it has none: an oracle may have another scale, or grade refusals."""
    return grade if sign == "POSITIVE" and 0 < grade <= MAX_GRADE else 0.0


def _pair(query: Any, premise: Any, sign: Sign, premise_id: Any = "", grade: float = 0.0) -> JudgedPair:
    if not all(isinstance(text, str) for text in (query, premise, premise_id)) or not query or not premise + premise_id:
        raise TypeError
    return JudgedPair(query, premise_id, premise, sign, grade=grade)


def _gold(dataset: Dataset, split: str) -> Iterator[JudgedPair]:
    """Yields every query's children in any tree of the split, and its trees' distractors that are not children."""
    gold = {(query.text, premise): None for query in dataset.queries(split) for premise in query.gold}
    for query, premise in gold:
        yield JudgedPair(query, "", premise, "POSITIVE", split, split)
    refused = {(query, distractor): None for query, _, distractor in dataset.distractor_triplets(split)}
    for query, distractor in refused:
        if (query, distractor) not in gold:
            yield JudgedPair(query, "", distractor, "NEGATIVE", split, split)


def _rated(dataset: RatedDataset, split: str) -> Iterator[JudgedPair]:
    for query, grades in dataset.queries(split):
        for fact, grade in grades.items():
            yield JudgedPair(query, "", fact, "POSITIVE" if grade else "NEGATIVE", split, split, grade)


def _only_elsewhere(texts: Mapping[str, Set[str]], split: str) -> set[str]:
    """Returns the texts of other splits alone; none where the split is not among them, as in a single file."""
    others = (found for name, found in texts.items() if name != split and split in texts)
    return set().union(*others) - texts.get(split, set())


_Found = dict[tuple[str, str, str], list[tuple[Sign, float]]]  # signs and grades of query, premise id and premise


class SampledPairs:
    """Pair logs of runs, read through the sampler's RPCs."""

    def __init__(self, sampler: SamplerClient) -> None:
        self._sampler = sampler

    async def check(self, corpus: str, run_ids: tuple[str, ...], split: str, *, need_positives: bool = True) -> None:
        """Raises NotFound for an unknown run, FailedPrecondition for runs of another corpus or without positives."""
        positives = 0
        for run_id in run_ids:
            run = await self._sampler.get_run(run_id)
            if run.config.corpus != corpus:
                raise FailedPrecondition(f"run {run_id} is over corpus {run.config.corpus!r}, the job over {corpus!r}")
            if split and run.config.split not in {"", split}:
                raise FailedPrecondition(
                    f"run {run_id} is over hypotheses of split {run.config.split!r}, the job learns from {split!r} "
                    f"only; leave the run out, or give a run over split {split!r}"
                )
            positives += run.progress.positives
        if need_positives and not positives:
            names = ", ".join(run_ids)
            raise FailedPrecondition(
                f"runs {names} hold no positive pair yet; let the oracle accept something first", reason="NO_POSITIVES"
            )

    async def read(self, run_ids: tuple[str, ...]) -> list[JudgedPair]:
        """Reads all pairs of runs, in the order of the runs and of their logs, without those amended since.

        Each has the split of its run's hypotheses. Equal texts are kept once: runs have a million pairs.
        """
        pairs: list[JudgedPair] = []
        texts: dict[str, str] = {}
        for run_id in run_ids:
            split = (await self._sampler.get_run(run_id)).config.split
            found: _Found = {}
            async for pair in self._sampler.list_pairs(run_id):
                sign = _SAMPLER_SIGNS.get(pair.sign)
                if sign is not None:
                    query, premise_id, premise = (
                        texts.setdefault(text, text) for text in (pair.query, pair.premise_id, pair.premise)
                    )
                    signs = found.setdefault((query, premise_id, premise), [])
                    if pair.provenance.amended:
                        signs.clear()
                    signs.append((sign, _usable(pair.provenance.grade, sign)))
            pairs += await asyncio.to_thread(_judged, found, split)
        return pairs

    async def close(self) -> None:
        """Closes the channel to the sampler."""
        await self._sampler.channel.close()


def _judged(found: _Found, split: str) -> list[JudgedPair]:
    """Empties `found` into pairs, little by little: to free a million entries at once would hold up the event loop."""
    keys = list(found)
    return [JudgedPair(*key, sign, split, grade=grade) for key in keys for sign, grade in found.pop(key)]
