"""A fleet that stays between runs, to train and to measure on: EntailmentBank, asked through the RPCs.

Jobs and runs have idempotency keys by row and seed, so what was trained once is found again, and what was broken off
goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import aeenc
from aeenc import Retrieval, values
from aeenc.cli.corpus import ensure_corpus
from aeenc.cli.learning.evaluation import explain_training, training_of
from aeenc.cli.learning.jobs import TRAINING_SPLIT
from aeenc.cli.learning.reports import report_dict
from aeenc.cli.learning.runs import hypotheses_of
from aeenc.evaluation import gold_of
from aeenc.loop import Journal, Loop, LoopPlan, pretrained
from aeenc.trees import Dataset
from aeenc.v1 import trainer_pb2
from benchmarks.harness.entailmentbank import DATA
from benchmarks.harness.kept_fleet import home_of, kept_fleet
from benchmarks.harness.rows import ROOT
from benchmarks.tables.by_tree import BY_QUERY, JUMP, by_query, jump, own_is_premise
from benchmarks.tables.table_text import deeper_metrics
from services.store.registry_rows import CROSS_ENCODERS
from services.trainer.models.base_model import DEFAULT_NAME

HOME = ROOT / ".aeenc" / "bench" / "research"
VALIDATION = "dev"
PUBLISH_S = 60.0
NLI = "nli"  # the data set of row `nli-first`
INFERENCES = DATA.resolve().parent / "snli" / "dev.jsonl"
GOLD = "gold"  # the trainer's name of the data set, and the sampler's of the oracle
EVALUATE_S = 6 * 3600.0


class Unfinished(Exception):
    """A job or run did not finish; the message says why."""


@dataclass
class Research:
    """A running fleet over one data set, with the corpus of its candidates built; `explain` teaches it the prior."""

    client: aeenc.Client
    dataset: Dataset
    corpus: str
    home: Path
    explain: Callable[[aeenc.Client, str, Dataset], None] = explain_training

    def evaluate(
        self,
        split: str,
        *,
        version: str | None = None,
        retrieval: Retrieval | None = None,
        strict_only: bool = False,
        trees: bool = False,
    ) -> dict[str, Any]:
        """The report of a split, by the version that `stable` names unless another is given.

        One that is `strict_only` tells of whole trees with `trees` alone.
        """
        if retrieval is not None and retrieval.prior:
            self.explain(self.client, self.corpus, self.dataset)
        report = self.client.trainer.evaluate(
            self.corpus,
            gold_of(self.dataset, split),
            version=version,
            retrieval=retrieval,
            training=() if strict_only else training_of(self.dataset, split),
            trees=() if strict_only and not trees else self.dataset.trees(split),
            strict_only=strict_only,
            ranks=True,
            timeout_s=EVALUATE_S,
        )
        told = report_dict(report)
        for protocol in ("strict", "paper"):
            if protocol in told:
                told[protocol] |= deeper_metrics([getattr(one, protocol) for one in report.ranks])
        ranks = [one.strict for one in report.ranks]
        told[BY_QUERY] = by_query(self.dataset, split, ranks)
        if "paper" in told:
            told[JUMP] = jump(ranks, own_is_premise(self.dataset, split), told["paper"]["MAP"])
        return told

    def serve(self, version: str) -> None:
        """Points `stable` at a version, waits until the encoder serves it, and has the corpus searched in its space."""
        self._search_in(self.publish(version).space_id)

    def publish(self, version: str) -> values.Label:
        """Has the encoder serve a version, or score pairs by it where it is a cross-encoder."""
        published = self.client.registry.publish(version, wait_s=PUBLISH_S, force=True)
        if not published.complete:
            raise Unfinished(f"the encoder does not serve {version}: {[one.reason for one in published.rollouts]}")
        return published.label

    def cross_encoders(self) -> list[values.Checkpoint]:
        """The cross-encoders that there are, the newest first."""
        return [one for one in self.client.trainer.list_checkpoints() if one.space_id == CROSS_ENCODERS]

    def pretrained(self) -> str:
        """The version of the space's pre-trained encoder."""
        return pretrained(self.client)

    def train(self, key: str, fields: Mapping[str, Any]) -> values.Job:
        """The job of a key, started unless it was before, to its end; one that fails is resumed once.

        It trains against the vectors of its base, by default the pre-trained encoder's, whatever served last. Raises
        Unfinished for one that fails again, and for one that somebody cancels meanwhile; asked for anew, that goes on.
        """
        _check_known(fields)
        base = fields.get("base_version")
        trainer = self.client.trainer
        self._search_in(trainer.get_checkpoint(base).space_id if base else trainer.info().default_space_id)
        of_gold = {"split": TRAINING_SPLIT, "validation": gold_of(self.dataset, VALIDATION)}
        job = trainer.start_job(corpus=self.corpus, idempotency_key=self._key(key, fields), **{**of_gold, **fields})
        if job.state == values.WorkState.CANCELLED:
            self.client.trainer.resume(job.id)
        job = self.client.trainer.wait(job.id, on_progress=_Told(key))
        if job.state == values.WorkState.FAILED:  # the machine may have been switched off
            self.client.trainer.resume(job.id)
            job = self.client.trainer.wait(job.id, on_progress=_Told(key))
        if job.state == values.WorkState.CANCELLED:
            raise Unfinished(f"job {job.id} was cancelled; run this again to go on with it")
        if job.state != values.WorkState.SUCCEEDED:
            raise Unfinished(f"job {job.id} has failed, and once more after it was resumed: {job.error}")
        return job

    def loop(
        self,
        key: str,
        *,
        rounds: int,
        run: Mapping[str, Any],
        job: Mapping[str, Any],
        later_run: Mapping[str, Any] | None = None,
    ) -> Loop:
        """The loop of a key, to so many rounds at least; it begins with the pre-trained encoder."""
        _check_known(job)
        plan = LoopPlan(
            corpus=self.corpus,
            hypotheses=hypotheses_of(self.dataset, TRAINING_SPLIT),
            validation=gold_of(self.dataset, VALIDATION),
            oracle=GOLD,
            rounds=rounds,
            patience=0,
            run={"split": TRAINING_SPLIT, **run},
            job={"split": TRAINING_SPLIT, **{name: value for name, value in job.items() if name != "mode"}},
            later_run=later_run or {},
            mode=str(job.get("mode", "MODE_SINGLE")).removeprefix("MODE_").lower(),  # type: ignore[arg-type]
        )
        name = self._key(key, {**run, **job})
        with Journal.open(self.home / "loops" / f"{name}.json", plan) as journal:
            done = [one for one in journal.rounds if one.published]
            self.serve(done[-1].version if done else self.pretrained())
            loop = Loop(self.client, plan, journal, report_dict, lambda text: print(f"  {key}: {text}", flush=True))
            loop.go()
        return loop

    def _search_in(self, space_id: str) -> None:
        """Activates a generation of a space, unless one is active."""
        active = {found.corpus: found.active for found in self.client.index.list_corpora()}[self.corpus]
        if active.space_id != space_id:
            found = [one for one in self.client.index.list_generations(self.corpus) if one.space_id == space_id]
            self.client.index.activate(self.corpus, found[0].id, expected=active.id)

    def _key(self, key: str, settings: Mapping[str, Any]) -> str:
        """A key of this data and these settings: with others, the work is another."""
        told = json.dumps(dict(settings), sort_keys=True, default=str)
        return f"{key}-{self.corpus}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


class _Told:
    """Prints where a job stands, once an epoch."""

    def __init__(self, key: str) -> None:
        self._key, self._epochs, self._started = key, 0, time.monotonic()

    def __call__(self, job: values.Job) -> None:
        if job.progress.epochs_done > self._epochs:
            self._epochs = job.progress.epochs_done
            seconds = time.monotonic() - self._started
            told = f"epoch {self._epochs}, dev MAP {job.progress.validation_map:.4f}, {seconds:.0f} s"
            print(f"  {self._key}: {told}", flush=True)


@contextmanager
def research(
    base_model: str = DEFAULT_NAME,
    *,
    directory: Path = DATA,
    home: Path = HOME,
    further: Mapping[str, Path] = MappingProxyType({}),
    **settings: object,
) -> Iterator[Research]:
    """A fleet over the data in `directory`; `settings` are the trainer's. It ends with the block, its state stays.

    Its home is one of these data and settings. `further` data sets are the trainer's, too, and made of the data.
    """
    dataset = Dataset.load(directory)
    data_sets = {GOLD: str(directory.resolve()), **({NLI: f"nli:{INFERENCES}"} if INFERENCES.is_file() else {})}
    data_sets |= {name: str(path.resolve()) for name, path in further.items()}
    chosen = {"base_model": base_model, "data_sets": json.dumps(data_sets), **settings}
    read = [directory, *([INFERENCES] if INFERENCES.is_file() else [])]
    base = home / base_model.replace("/", "--")
    with patch.dict(os.environ, {f"AEENC_TRAINER_{name.upper()}": str(value) for name, value in chosen.items()}):
        gold = {"gold_trees": str(directory.resolve()), "gold_split": TRAINING_SPLIT}
        with kept_fleet(base, *read, **gold) as client:
            yield Research(client, dataset, ensure_corpus(client, dataset), home_of(base, *read))


def at_hand(base_model: str) -> str:
    """Why a base model cannot be used without a download; empty: it can."""
    if base_model == DEFAULT_NAME or Path(base_model).is_dir():
        return ""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(base_model, local_files_only=True)
    except Exception as error:  # noqa: BLE001 -- the hub's client raises many unrelated classes
        return f"{base_model} is not at hand ({type(error).__name__}); download it, then run the row again"
    return ""


def _check_known(fields: Mapping[str, Any]) -> None:
    unknown = set(fields) - set(trainer_pb2.JobConfig.DESCRIPTOR.fields_by_name)
    if unknown:
        raise Unfinished(f"jobs of this build have no {', '.join(sorted(unknown))}")
