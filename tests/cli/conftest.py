"""The command line beside real servers: an index, a hashed encoder, and a trainer that answers what a test wrote."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from aeenc import AsyncClient, IndexClient, SamplerClient, errors
from aeenc.cli.main import app
from aeenc.v1 import (
    encoder_pb2,
    encoder_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    types_pb2,
)
from services.index.__main__ import build
from services.index.settings import IndexSettings
from services.store.artifacts import ArtifactStore
from support.small_trees import record, write_small_trees
from support.waiting import until
from support.worlds.index_world import DIM, SPACE, VERSION, HashedEncoder
from support.worlds.sampler_world import SamplerWorld, refuse, serving, small_world


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        [line] = self.stdout.splitlines()
        return json.loads(line)

    @property
    def error(self) -> Any:
        return json.loads(self.stderr.splitlines()[-1])["error"]


class Aeenc:
    """`await aeenc("retrieve", …)` as people do it, `await aeenc.json("retrieve", …)` as programs do."""

    async def __call__(self, *words: object, typed: str = "") -> Ended:
        result = await asyncio.to_thread(CliRunner().invoke, app, [str(word) for word in words], typed)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout, result.stderr)

    async def json(self, *words: object, typed: str = "") -> Any:
        """The answer of a command that succeeds."""
        ended = await self("--json", *words, typed=typed)
        assert ended.code == 0, ended.stderr
        return ended.json


@pytest.fixture
def aeenc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Aeenc:
    """Commands in an empty directory, without any AEENC_ variable but those of the services that a test starts."""
    for name in [name for name in os.environ if name.startswith("AEENC_")]:
        monkeypatch.delenv(name)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return Aeenc()


class Encoder(HashedEncoder):
    """The hashed encoder, which also says what it is."""

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return encoder_pb2.EncoderServiceGetInfoResponse(
            service=types_pb2.ServiceInfo(state=types_pb2.SERVICE_STATE_DEGRADED, state_reason="no registry"),
            default_space_id=SPACE,
            dim=DIM,
            versions=[encoder_pb2.LoadedVersion(version=VERSION, space_id=SPACE)],
            labels=[types_pb2.Label(space_id=SPACE, name="stable", versions=[VERSION], revision=1)],
        )


@dataclass
class Trainer(
    trainer_pb2_grpc.TrainerServiceServicer,
    trainer_pb2_grpc.TrainerAdminServiceServicer,
    registry_pb2_grpc.RegistryAdminServiceServicer,
):
    """Answers with `jobs` one after another, `report` and `complete`, or `failure`; notes what it was asked."""

    jobs: list[trainer_pb2.Job] = field(default_factory=list)
    report: types_pb2.EvaluationReport = field(default_factory=types_pb2.EvaluationReport)
    reports: list[types_pb2.EvaluationReport] = field(default_factory=list)  # the next answers, before `report`
    complete: bool = True
    lagging: types_pb2.Rollout | None = None
    gate: registry_pb2.PublishResponse = field(default_factory=registry_pb2.PublishResponse)
    moved_on_to: str = ""
    failure: errors.AeencError | None = None
    checkpoint: trainer_pb2.Checkpoint = field(default_factory=trainer_pb2.Checkpoint)
    labels: list[types_pb2.Label] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)

    async def _hear(self, request: Any, context: Any) -> None:
        self.asked.append(request)
        if self.failure is not None:
            await refuse(context, self.failure)

    async def StartJob(self, request: Any, context: Any) -> Any:
        await self._hear(request, context)
        return trainer_pb2.StartJobResponse(job=self.jobs[0])

    async def GetJob(self, request: Any, context: Any) -> Any:
        return trainer_pb2.GetJobResponse(job=self.jobs[-1])

    async def WatchJob(self, request: Any, context: Any) -> Any:
        for seq, job in enumerate(self.jobs, start=1):
            yield trainer_pb2.WatchJobResponse(seq=seq, job=job)

    async def Evaluate(self, request_iterator: Any, context: Any) -> Any:
        async for request in request_iterator:
            await self._hear(request, context)
        return trainer_pb2.EvaluateResponse(report=self.reports.pop(0) if self.reports else self.report)

    async def GetCheckpoint(self, request: Any, context: Any) -> Any:
        return trainer_pb2.GetCheckpointResponse(checkpoint=self.checkpoint)

    async def ListCheckpoints(self, request: Any, context: Any) -> Any:
        return trainer_pb2.ListCheckpointsResponse(checkpoints=[self.checkpoint])

    async def DeleteCheckpoint(self, request: Any, context: Any) -> Any:
        await self._hear(request, context)
        return trainer_pb2.DeleteCheckpointResponse()

    async def DeleteJob(self, request: Any, context: Any) -> Any:
        await self._hear(request, context)
        return trainer_pb2.DeleteJobResponse()

    async def CollectGarbage(self, request: Any, context: Any) -> Any:
        await self._hear(request, context)
        garbage = [types_pb2.Garbage(kind="job", id="j1", reason="not among the 3 that ended last", bytes=2048)]
        return trainer_pb2.TrainerAdminServiceCollectGarbageResponse(garbage=garbage)

    async def GetInfo(self, request: Any, context: Any) -> Any:
        info = types_pb2.ServiceInfo(state=types_pb2.SERVICE_STATE_SERVING)
        return trainer_pb2.TrainerServiceGetInfoResponse(service=info, default_space_id=SPACE, device="cpu")

    async def ListLabels(self, request: Any, context: Any) -> Any:
        return registry_pb2.ListLabelsResponse(labels=self.labels)

    async def DeleteLabel(self, request: Any, context: Any) -> Any:
        await self._hear(request, context)
        return registry_pb2.DeleteLabelResponse()

    async def ListJobs(self, request: Any, context: Any) -> Any:
        return trainer_pb2.ListJobsResponse(jobs=self.jobs)

    async def Publish(self, request: Any, context: Any) -> Any:
        await self._hear(request, context)
        versions = [self.moved_on_to] if self.moved_on_to else request.versions
        label = types_pb2.Label(
            name=request.label, versions=versions, revision=2, previous_versions=["q0"], share=request.share
        )
        rollouts = [
            types_pb2.Rollout(instance="encoder-a", label=label, ok=True),
            self.lagging or types_pb2.Rollout(instance="encoder-b", label=label, ok=True),
        ]
        response = registry_pb2.PublishResponse(label=label, rollouts=rollouts, complete=self.complete)
        response.MergeFrom(self.gate)
        return response

    async def Rollback(self, request: Any, context: Any) -> Any:
        await self._hear(request, context)
        label = types_pb2.Label(name=request.label, versions=["q0"], revision=3, previous_versions=["q1"])
        return registry_pb2.RollbackResponse(label=label, complete=True)


@dataclass(frozen=True)
class Fleet:
    """Running services, and the addresses of two."""

    encoder: Encoder
    trainer: Trainer
    encoder_target: str
    index: str


@pytest.fixture
async def fleet(aeenc: Aeenc, artifact_store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """An index over an empty store, its encoder, and a scripted trainer, which commands find."""

    def both(servicer: Any, server: Any) -> None:
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server)
        trainer_pb2_grpc.add_TrainerAdminServiceServicer_to_server(servicer, server)
        registry_pb2_grpc.add_RegistryAdminServiceServicer_to_server(servicer, server)

    encoder, trainer = Encoder(), Trainer()
    async with AsyncExitStack() as stack:
        stack.enter_context(capture_logs())  # the services' logs, which would stand in the command's output
        encoder_port = await stack.enter_async_context(
            serving(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, encoder)
        )
        trainer_port = await stack.enter_async_context(serving(both, trainer))
        server = build(
            IndexSettings(
                port=0, artifacts_dir=artifact_store.root, encoder_target=f"127.0.0.1:{encoder_port}", build_batch=8
            )
        )
        await stack.enter_async_context(server)
        await until(lambda: server.readiness.answers)
        for name, port in {"ENCODER": encoder_port, "INDEX": server.port, "TRAINER": trainer_port}.items():
            monkeypatch.setenv(f"AEENC_{name}", f"127.0.0.1:{port}")
        yield Fleet(encoder, trainer, f"127.0.0.1:{encoder_port}", f"127.0.0.1:{server.port}")


@pytest.fixture
async def index(fleet: Fleet) -> AsyncIterator[IndexClient]:
    """A client of the fleet's index."""
    async with AsyncClient(index=fleet.index) as client:
        yield client.index


@pytest.fixture
async def world(redis_url: str, namespace: str) -> AsyncIterator[SamplerWorld]:
    """What a sampler needs: an index with fixed scores, and an oracle named `fake`."""
    with capture_logs():
        async with small_world(redis_url, namespace) as made:
            yield made


@pytest.fixture
async def sampler(aeenc: Aeenc, world: SamplerWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SamplerClient]:
    """A client of a sampler in that world, which commands find."""
    async with world.sampler() as made:
        monkeypatch.setenv("AEENC_SAMPLER", made.channel.target)
        yield made


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """A directory in EntailmentBank's layout; two train trees share an id, two a hypothesis."""
    third = record("one", "steel is magnetic", "sent1: steel holds iron", "sent1 -> hypothesis; ")
    return write_small_trees(tmp_path / "trees", third)
