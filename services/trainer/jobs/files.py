"""The directory of one training job: what the trainer gives its child process, and what the child leaves there.

`job.json`, `pairs.jsonl`, `held_out.jsonl` and `validation.jsonl` are written before the child starts; `progress.json`
and `result.json` come from the child; `epoch.safetensors` is where it goes on from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from services.store.artifacts import atomic_write
from services.trainer.data.training_set import JudgedPair
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.job import JobConfig

FORMAT_VERSION = 1

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ComputeOptions:
    """What a job computes with, and where it draws its curves. `threads` are those of all its processes together."""

    device: str = "cpu"
    threads: int = 1
    int8: bool = True
    fp16: bool = False
    precision: Precision | Literal["auto"] = "float32"
    processes: int = 1
    tensorboard_dir: str = ""


@dataclass(frozen=True)
class TrainingPlan:
    """Everything that decides what a job computes."""

    job_id: str
    config: JobConfig
    generation: str
    artifacts_dir: str
    means: ComputeOptions = ComputeOptions()

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """Reads what was written for the child."""
        record.pop("format_version")
        config = JobConfig.from_record(record["config"])
        return cls(**{**record, "config": config, "means": ComputeOptions(**record["means"])})


class JobFiles:
    """Reads and writes one job's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_plan(self, plan: TrainingPlan) -> None:
        """Writes what is to be computed, and how."""
        record = {"format_version": FORMAT_VERSION, **asdict(plan)}
        atomic_write(self.directory / "job.json", json.dumps(record, indent=1).encode())

    def write_inputs(
        self, pairs: Iterable[JudgedPair], validation: Iterable[EvaluationQuery], held_out: Iterable[str] = ()
    ) -> None:
        """Writes what is learned from; `validation.jsonl` last: with it, the inputs are complete."""
        self._write_lines("pairs.jsonl", ([p.query, p.premise_id, p.premise, p.sign, p.split] for p in pairs))
        self._write_lines("held_out.jsonl", sorted(held_out))
        self._write_lines("validation.jsonl", ([query.text, list(query.gold)] for query in validation))

    @property
    def has_inputs(self) -> bool:
        """Whether an earlier attempt has written the inputs."""
        return (self.directory / "validation.jsonl").is_file()

    def plan(self) -> TrainingPlan:
        """What to compute."""
        return TrainingPlan.from_json(json.loads((self.directory / "job.json").read_bytes()))

    def pairs(self) -> Iterator[JudgedPair]:
        """The pairs to learn from."""
        for fields in self._lines("pairs.jsonl"):
            yield JudgedPair(*fields)

    def held_out(self) -> set[str]:
        """Texts to learn from only where trees of the job's split have them; the validation queries are among them."""
        known = self._lines("held_out.jsonl") if (self.directory / "held_out.jsonl").is_file() else ()
        return {*known, *(query.text for query in self.validation())}

    def validation(self) -> list[EvaluationQuery]:
        """The queries that choose the epoch."""
        return [EvaluationQuery(text, tuple(gold)) for text, gold in self._lines("validation.jsonl")]

    def write_progress(self, progress: dict[str, Any]) -> None:
        """Says how far the child is. Not durable: it is written again within the second."""
        path = self.directory / "progress.json"
        path.with_suffix(".tmp").write_text(json.dumps(progress))
        path.with_suffix(".tmp").replace(path)

    def progress(self) -> dict[str, Any] | None:
        """How far the child is; None before its first word."""
        return self._json("progress.json")

    def write_result(self, result: dict[str, Any]) -> None:
        """Says how the child's work ended: {"version": …} or {"error": …}."""
        atomic_write(self.directory / "result.json", json.dumps(result).encode())

    def result(self) -> dict[str, Any] | None:
        """How the child's work ended; None when it was killed."""
        return self._json("result.json")

    def forget_result(self) -> None:
        """Makes room for another attempt."""
        (self.directory / "result.json").unlink(missing_ok=True)

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = json.loads((self.directory / name).read_bytes())
        except FileNotFoundError:
            return None
        return record

    def _write_lines(self, name: str, records: Iterable[Any]) -> None:
        data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        atomic_write(self.directory / name, data.encode())

    def _lines(self, name: str) -> Iterator[Any]:
        with (self.directory / name).open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
