"""A sampler, a trainer and a registry whose runs and jobs end at once, and which keep count of what they were asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aeenc.v1 import (
    registry_pb2,
    registry_pb2_grpc,
    sampler_pb2,
    sampler_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    types_pb2,
)

DONE, FAILED, CANCELLED = (
    types_pb2.WORK_STATE_SUCCEEDED,
    types_pb2.WORK_STATE_FAILED,
    types_pb2.WORK_STATE_CANCELLED,
)
TRIAL = "loop-"


@dataclass
class CountingServices(
    sampler_pb2_grpc.SamplerServiceServicer,
    trainer_pb2_grpc.TrainerServiceServicer,
    registry_pb2_grpc.RegistryAdminServiceServicer,
):
    """Runs and jobs that end at once, by idempotency key; version `qN` of job N has the N-th of `maps`."""

    maps: list[float] = field(default_factory=lambda: [0.4, 0.5, 0.6, 0.7, 0.8])
    runs: dict[str, sampler_pb2.RunConfig] = field(default_factory=dict)
    jobs: dict[str, trainer_pb2.JobConfig] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=lambda: {"stable": "q0"})
    published: list[tuple[str, bool]] = field(default_factory=list)  # but for trials
    tried: list[str] = field(default_factory=list)
    explained: list[dict[str, str]] = field(default_factory=list)  # before_id by text, a run
    measured: list[dict[str, str]] = field(default_factory=list)  # before_id by text, an evaluation
    positives: int = 7
    failures: int = 0  # of the next runs and jobs, until they are resumed
    cancelled: set[str] = field(default_factory=set)  # ids of runs and jobs
    resumed: int = 0
    behind: bool = False  # no encoder serves what is published

    def _run(self, run_id: str) -> sampler_pb2.Run:
        progress = sampler_pb2.RunProgress(positives=self.positives, negatives=9)
        state = CANCELLED if run_id in self.cancelled else FAILED if self.failures else DONE
        return sampler_pb2.Run(id=run_id, state=state, progress=progress, error="no oracle" if self.failures else "")

    def _job(self, job_id: str) -> trainer_pb2.Job:
        number = int(job_id[1:])
        progress = trainer_pb2.JobProgress(best_validation_map=self.maps[number])
        state = CANCELLED if job_id in self.cancelled else FAILED if self.failures else DONE
        return trainer_pb2.Job(id=job_id, state=state, version=f"q{number}", progress=progress)

    async def StartRun(self, request_iterator: Any, context: Any) -> Any:
        [request] = [request async for request in request_iterator]
        self.runs.setdefault(request.config.idempotency_key, request.config)
        self.explained.append({one.text: one.before_id for one in request.hypotheses})
        return sampler_pb2.StartRunResponse(run=self._run(f"r{list(self.runs).index(request.config.idempotency_key)}"))

    async def WatchRun(self, request: Any, context: Any) -> Any:
        yield sampler_pb2.WatchRunResponse(seq=1, run=self._run(request.run_id))

    async def GetRun(self, request: Any, context: Any) -> Any:
        return sampler_pb2.GetRunResponse(run=self._run(request.run_id))

    async def ResumeRun(self, request: Any, context: Any) -> Any:
        self.resumed, self.failures = self.resumed + 1, max(0, self.failures - 1)
        self.cancelled.discard(request.run_id)
        return sampler_pb2.ResumeRunResponse(run=self._run(request.run_id))

    async def StartJob(self, request: Any, context: Any) -> Any:
        self.jobs.setdefault(request.config.idempotency_key, request.config)
        number = list(self.jobs).index(request.config.idempotency_key) + 1
        return trainer_pb2.StartJobResponse(job=self._job(f"j{number}"))

    async def WatchJob(self, request: Any, context: Any) -> Any:
        yield trainer_pb2.WatchJobResponse(seq=1, job=self._job(request.job_id))

    async def GetJob(self, request: Any, context: Any) -> Any:
        return trainer_pb2.GetJobResponse(job=self._job(request.job_id))

    async def ResumeJob(self, request: Any, context: Any) -> Any:
        self.resumed, self.failures = self.resumed + 1, max(0, self.failures - 1)
        self.cancelled.discard(request.job_id)
        return trainer_pb2.ResumeJobResponse(job=self._job(request.job_id))

    async def Evaluate(self, request_iterator: Any, context: Any) -> Any:
        requests = [request async for request in request_iterator]
        model = requests[0].config.model
        self.measured.append({one.text: one.before_id for request in requests for one in request.queries})
        version = model.version or self.labels[model.label]
        assert version in self.labels.values(), "an encoder serves what a label names"
        metrics = types_pb2.RetrievalMetrics(map=self.maps[int(version[1:])])
        report = types_pb2.EvaluationReport(strict=metrics, paper=metrics, model_version=version)
        return trainer_pb2.EvaluateResponse(report=report)

    async def ListLabels(self, request: Any, context: Any) -> Any:
        labels = [types_pb2.Label(name="stable", versions=["q9"], space_id="another")]
        labels += [types_pb2.Label(name=name, versions=[version]) for name, version in self.labels.items()]
        return registry_pb2.ListLabelsResponse(labels=labels)

    async def SetLabel(self, request: Any, context: Any) -> Any:
        self.labels[request.label] = request.versions[0]
        return registry_pb2.SetLabelResponse(label=types_pb2.Label(name=request.label, versions=request.versions))

    async def Publish(self, request: Any, context: Any) -> Any:
        self.labels[request.label] = request.versions[0]
        if request.label.startswith(TRIAL):
            self.tried += request.versions
        else:
            self.published.append((request.versions[0], request.force))
        label = types_pb2.Label(name=request.label, versions=request.versions)
        return registry_pb2.PublishResponse(label=label, complete=not self.behind)

    async def DeleteLabel(self, request: Any, context: Any) -> Any:
        del self.labels[request.label]
        return registry_pb2.DeleteLabelResponse()


def all_three(servicer: Any, server: Any) -> None:
    sampler_pb2_grpc.add_SamplerServiceServicer_to_server(servicer, server)
    trainer_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server)
    registry_pb2_grpc.add_RegistryAdminServiceServicer_to_server(servicer, server)
