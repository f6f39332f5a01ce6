"""The directory of one training job, through which the trainer and its child process talk.

The trainer writes `job.json`, `inputs.jsonl`, a pair a line behind a first line of all else to learn from, and last
`inputs.json`, its hash; the child writes `progress.json` and `result.json`, and `epoch.safetensors`, from which it
resumes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from aeenc.errors import DataLoss
from aeenc.files.whole import whole_file
from services.kit.logs import get
from services.store.files import atomic_write, sha256_of
from services.store.formats import check_format, damage_is_data_loss, made_of
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.losses import LOSSES, LossSpec, loss_of_ones_own
from services.trainer.jobs.training_set import JudgedPair

log = get(__name__)

FORMAT_VERSION = 1
INPUTS, HASH = "inputs.jsonl", "inputs.json"
EPOCH_STATE = "epoch.safetensors"
PAIR_FIELDS = len(fields(JudgedPair))  # a later minor release may write further ones behind them

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ComputeOptions:
    """Settings of how a job computes, and where its curves go. `threads` are those of all its processes together."""

    device: str = "cpu"
    gpu_bytes: int = 0
    threads: int = 1
    int8: bool = True
    fp16: bool = False
    precision: Precision | Literal["auto"] = "float32"
    processes: int = 1
    tensorboard_dir: str = ""


@dataclass(frozen=True)
class TrainingPlan:
    """Everything that determines a job's result, apart from its inputs."""

    job_id: str
    config: JobConfig
    generation: str
    artifacts_dir: str
    means: ComputeOptions = ComputeOptions()
    artifacts_url: str = ""
    holds_back: bool = False  # without validation queries, trees of the runs judge the result, and choose no epoch
    serving: tuple[str, ...] = ()  # versions to measure beside the job's own, for the quality gate
    base_model: str = ""  # the directory of the configuration's `base_model`
    custom_loss: str = ""  # what the settings call by the configuration's `custom_loss`, as `loss_of_ones_own` reads it

    @property
    def loss(self) -> LossSpec:
        """The loss that the job trains with."""
        return loss_of_ones_own(self.custom_loss) if self.custom_loss else LOSSES[self.config.loss]


class JobFiles:
    """Reads and writes one job's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_plan(self, plan: TrainingPlan) -> None:
        """Writes the plan."""
        record = {"format_version": FORMAT_VERSION, **asdict(plan)}
        atomic_write(self.directory / "job.json", json.dumps(record, indent=1).encode())

    def write_inputs(
        self,
        pairs: Iterable[JudgedPair],
        validation: Iterable[EvaluationQuery],
        held_out: Iterable[str] = (),
        candidates: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Writes the inputs; their hash comes last and marks them complete. `candidates`: ids retrieved for queries."""
        first = {
            "held_out": sorted(held_out),
            "validation": [query.to_record() for query in validation],
            "candidates": candidates or {},
        }
        # Line by line: a million pairs would take memory twice as text and as bytes.
        with whole_file(path := self.directory / INPUTS, durable=True) as file:
            records = chain([first], map(astuple, pairs))
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        record = {"format_version": FORMAT_VERSION, "sha256": sha256_of(path)}
        atomic_write(self.directory / HASH, json.dumps(record).encode())

    def has_inputs(self) -> bool:
        """Whether the inputs are complete and sound; otherwise they can be written anew.

        Raises NewerFormat, and DataLoss for a damaged input if an epoch has ended: the job must go on with the same
        pairs.
        """
        path, record, sha256 = self.directory / INPUTS, self._json(HASH), ""
        if record is not None:
            with contextlib.suppress(ValueError, KeyError):
                check_format(record, FORMAT_VERSION, str(self.directory / HASH))
                sha256 = record["sha256"]
        is_sound = path.is_file() and sha256_of(path) == sha256
        if not is_sound and (self.directory / EPOCH_STATE).is_file():
            raise DataLoss(
                f"{path} or its hash, {HASH}, is missing or damaged, and the job has learned from it; start a new job, "
                "or restore both files"
            )
        if not is_sound and record is not None:
            log.warning("a job's inputs are damaged and written anew", path=str(path))
        return is_sound

    def plan(self) -> TrainingPlan:
        """Reads the plan. Raises DataLoss, NewerFormat."""
        with damage_is_data_loss(path := self.directory / "job.json", "start a new job"):
            record = json.loads(path.read_bytes())
            check_format(record, FORMAT_VERSION, f"the plan of job {record.get('job_id')}")
            return made_of(TrainingPlan, record)

    def pairs(self) -> Iterator[JudgedPair]:
        """Reads the pairs to learn from."""
        for values in islice(self._lines(), 1, None):
            yield JudgedPair(*values[:PAIR_FIELDS])

    def held_out(self) -> set[str]:
        """Reads the texts to learn from only in trees of the job's split; the validation queries are among them."""
        return {*next(self._lines())["held_out"], *(query.text for query in self.validation())}

    def validation(self) -> list[EvaluationQuery]:
        """Reads the queries that choose the epoch."""
        return list(map(EvaluationQuery.of_record, next(self._lines())["validation"]))

    def candidates(self) -> dict[str, list[str]]:
        """Reads the ids of the premises that were retrieved for each query."""
        return dict(next(self._lines())["candidates"])

    def write_progress(self, progress: dict[str, Any]) -> None:
        """Writes the child's progress, not durably: the next report follows within a second."""
        atomic_write(self.directory / "progress.json", json.dumps(progress).encode(), durable=False)

    def progress(self) -> dict[str, Any] | None:
        """Reads the child's progress; None before its first report, or if a power cut has left an empty one."""
        return self._json("progress.json")

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes how the child's work ended: {"version": …} or {"error": …}, or both."""
        atomic_write(self.directory / "result.json", json.dumps(result).encode())

    def result(self) -> dict[str, Any] | None:
        """Reads how the child's work ended; None if it was killed, or what it wrote is damaged."""
        return self._json("result.json")

    def forget_result(self) -> None:
        """Removes the result before another attempt."""
        (self.directory / "result.json").unlink(missing_ok=True)

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            record = json.loads((self.directory / name).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            record = error
        if isinstance(record, dict):
            return record
        log.warning("a job's file is damaged and not used", path=str(self.directory / name), found=str(record)[:200])
        return None

    def _lines(self) -> Iterator[Any]:
        with (path := self.directory / INPUTS).open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise DataLoss(f"{path} cannot be read at line {number} ({error}); start a new job") from error
