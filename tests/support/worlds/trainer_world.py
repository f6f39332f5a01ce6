"""A tiny space that was exported once, a corpus in it, the files of a job over it, and services that run its jobs."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aeenc
from aeenc import Channel, EncoderClient, IndexClient, SamplerClient, TrainerClient
from aeenc.v1 import oracle_pb2_grpc, types_pb2
from services.corpus.active import read_active, write_active
from services.corpus.generation import (
    KIND,
    VECTORS,
    PremiseRecord,
    Storage,
    folder_of,
    write_premises,
)
from services.encoder.__main__ import build as build_encoder
from services.encoder.settings import EncoderSettings
from services.index.__main__ import build as build_index
from services.index.settings import IndexSettings
from services.kit.server import GrpcServer
from services.sampler.__main__ import build as build_sampler
from services.sampler.settings import SamplerSettings
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.__main__ import build
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.jobs.files import ComputeOptions, JobFiles, TrainingPlan
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.training_set import JudgedPair, Sign
from services.trainer.models.base_model import FILES
from services.trainer.models.batches import Batches
from services.trainer.models.space import SpaceSpec
from services.trainer.settings import TrainerSettings
from services.trainer.train import loop as training
from services.trainer.train.encoder import encode, load_encoder, prepare_torch
from services.trainer.train.export.checkpoint import export_pretrained
from services.trainer.train.job import load_task, run_job
from services.trainer.train.ranks import Rank
from support.made_once import made_once
from support.models.tiny_base_models import write_tiny_base
from support.models.tiny_checkpoints import WORDS, TinyCheckpoint
from support.waiting import until
from support.worlds.sampler_world import FakeOracle, serving


class Killed(Exception):
    """Stands for SIGKILL at a certain moment."""


@contextmanager
def killed_after(epochs: int) -> Iterator[None]:
    """Within the block the job that is run dies as soon as so many epochs are saved."""
    saved = training.save_state

    def die(directory: Any, standing: Any, *rest: Any) -> None:
        saved(directory, standing, *rest)
        if standing.epochs_done == epochs:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "save_state", die)
        try:
            yield
        except Killed:
            return
    pytest.fail(f"the job ended before {epochs} epochs were saved")


TOPICS = WORDS[20:44]
FACTS = [f"the {topic} is a kind of {WORDS[60 + n]}" for n, topic in enumerate(TOPICS)]
FACTS += [f"a {topic} can {WORDS[90 + n]} the {WORDS[30 + n]}" for n, topic in enumerate(TOPICS)]
QUERIES = [f"{topic} and {WORDS[60 + n]} are the same" for n, topic in enumerate(TOPICS)]


@dataclass(frozen=True)
class Space:
    """The exported pre-trained checkpoint, where it lies and what it was made from."""

    store: ArtifactStore
    base: Path
    request: dict[str, Any]
    version: str
    space_id: str

    def encode(self, texts: Sequence[str]) -> Any:
        """Vectors of texts by the pre-trained encoder."""
        artifact = self.store.open("checkpoints", self.version)
        spec = SpaceSpec.of_meta(artifact.meta)
        batches = Batches.of(artifact.path, spec, 0)
        return encode(load_encoder(artifact.path, spec), batches, texts, "")

    def build(self, corpus: str, premises: Iterable[PremiseRecord], storage: Storage = "float32") -> str:
        """Writes and activates a generation as the index would."""
        records = list(premises)
        vectors = self.encode([record.text for record in records]).astype(storage)
        with self.store.writer(KIND, folder_of(corpus)) as writer:
            write_premises(writer.path, records)
            np.save(writer.path / VECTORS, vectors, allow_pickle=False)
            meta = {
                "corpus": corpus,
                "space_id": self.space_id,
                "premise_version": self.version,
                "dim": 32,
                "premises": len(records),
                "storage": storage,
                "engine": "flat",
            }
            generation = writer.commit(meta, id_prefix="g").id
        write_active(self.store, corpus, generation)
        return generation


@pytest.fixture(scope="session")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """The tiny space; shared by all tests of a process, which keep apart by corpus."""
    root, version = made_once(tmp_path_factory, "space", lambda path: make_space(path).version)
    return space_in(root, root / "base", version)


def make_space(root: Path, dropout: float = 0.1) -> Space:
    """Exports the tiny base model into a store of its own."""
    return export_space(root, write_tiny_base(root / "base", dropout))


def export_space(root: Path, base: Path, pooling: str = "") -> Space:
    """Exports a base model's directory into a store of its own."""
    version = export_pretrained(ArtifactStore(root / "artifacts"), _request(root / "artifacts", base, pooling))
    return space_in(root, base, version, pooling)


def space_in(root: Path, base: Path, version: str, pooling: str = "") -> Space:
    """The space that was exported into a folder."""
    store = ArtifactStore(root / "artifacts")
    space_id = store.open("checkpoints", version).meta["space_id"]
    return Space(store, base, _request(store.root, base, pooling), version, space_id)


def _request(artifacts: Path, base: Path, pooling: str = "") -> dict[str, Any]:
    options = {"max_tokens": 64, "query_prefix": "", "premise_prefix": "", "pooling": pooling}
    options |= {"premise_precision": "float32", "fp16": False}
    return {"artifacts_dir": str(artifacts), "directory": str(base), "base_model": str(base), **options}


@pytest.fixture
def corpus(space: Space) -> str:
    """A corpus of FACTS that stand in train trees."""
    name = f"c-{uuid.uuid4().hex[:8]}"
    space.build(name, [PremiseRecord(f"f{n}", text, splits=("facts", "train")) for n, text in enumerate(FACTS)])
    return name


CLASSES = ("who", "when")


def pair_of(number: int, shift: int, sign: Sign = "NEGATIVE") -> JudgedPair:
    """A query with a fact so far behind its own; every second query is of the same class."""
    fact, question_class = (number + shift) % len(FACTS), CLASSES[number % 2]
    return JudgedPair(QUERIES[number], f"f{fact}", FACTS[fact], sign, "train", question_class=question_class)


PAIRS = [pair_of(n, 0, "POSITIVE") for n in range(len(QUERIES))]
PAIRS += [pair_of(n, shift) for n in range(len(QUERIES)) for shift in (1, 2)]
VALIDATION = [EvaluationQuery(query, (FACTS[n],)) for n, query in enumerate(QUERIES[:8])]

MakeJob = Callable[..., JobFiles]
CPU = ComputeOptions()


@pytest.fixture
def make_job(space: Space, corpus: str, tmp_path: Path) -> MakeJob:
    """Writes the inputs of a job; keywords are fields of JobConfig."""

    def make(
        pairs: Sequence[JudgedPair] = PAIRS,
        validation: Sequence[EvaluationQuery] = VALIDATION,
        held_out: Sequence[str] = (),
        means: ComputeOptions = CPU,
        retrieved: Mapping[str, Sequence[str]] | None = None,
        **fields: Any,
    ) -> JobFiles:
        active = read_active(space.store, corpus) or ""
        usual = {"base_version": space.version, "epochs": 3, "batch_size": 8, "learning_rate": 1e-3, "split": "train"}
        config = JobConfig(corpus=corpus, run_ids=("r",), **{**usual, **fields})
        job_id = uuid.uuid4().hex[:8]
        plan = TrainingPlan(job_id, config, active, str(space.store.root), means)
        files = JobFiles(tmp_path / job_id)
        files.write_plan(plan)
        files.write_inputs(pairs, validation, held_out, retrieved)
        return files

    return make


def maps_of(artifact: Artifact) -> tuple[float, float]:
    """The strict MAP on a job's validation queries: of what it began with, and of the checkpoint that it made."""
    metrics = json.loads(artifact.file("metrics.json").read_bytes())
    before, after = metrics["measured"][artifact.meta["base_version"]], metrics["average_precisions"]
    return float(np.mean(before)), float(np.mean(after))


def load(files: JobFiles) -> Any:
    """Loads the task of a job from its files, as the training process does."""
    prepare_torch(1)
    return load_task(files, Rank())


@asynccontextmanager
async def serve_trainer(
    space: Space, redis_url: str, namespace: str, state: Path, *, client_token: str | None = None, **fields: Any
) -> AsyncIterator[tuple[GrpcServer, TrainerClient]]:
    """A trainer over the tiny space, which it finds exported already; and its client."""
    options = trainer_settings(space, redis_url, namespace, state)
    async with build(TrainerSettings(**{**options, **fields})) as server:
        client = TrainerClient(Channel(f"127.0.0.1:{server.port}", token=client_token, timeout_s=20))
        [job async for job in client.list_jobs()]  # answered once it serves
        yield server, client
        await client.channel.close()


def untouched_space(checkpoint: TinyCheckpoint, store: ArtifactStore, base: Path) -> Space:
    """Tells the trainer that it has exported the checkpoint before, from a base model of which only names are there."""
    base.mkdir()
    for name in FILES:
        (base / name).touch()
    return Space(store, base, _request(store.root, base), checkpoint.version, checkpoint.space_id)


@asynccontextmanager
async def serve_encoder(
    space: Space, redis_url: str, namespace: str, state: Path, **fields: Any
) -> AsyncIterator[tuple[GrpcServer, EncoderClient]]:
    """An encoder over the tiny space's store, which may not be ready yet; and its client."""
    own = {"redis_url": redis_url, "namespace": namespace, "artifacts_dir": space.store.root, "state_dir": state}
    async with build_encoder(EncoderSettings(**{"port": 0, "workers": 1, "poll_s": 0.1, **own, **fields})) as server:
        client = EncoderClient(Channel(f"127.0.0.1:{server.port}", timeout_s=10))
        yield server, client
        await client.channel.close()


def trainer_settings(space: Space, redis_url: str, namespace: str, state: Path) -> dict[str, Any]:
    """Settings of a trainer that finds the tiny space exported already."""
    state.mkdir(parents=True, exist_ok=True)
    (state / "pretrained.json").write_text(json.dumps(space.request))
    (state / "pretrained.result").write_text(json.dumps({"version": space.version}))
    return {
        "port": 0,
        "artifacts_dir": space.store.root,
        "state_dir": state,
        "redis_url": redis_url,
        "namespace": namespace,
        "base_model": str(space.base),
        "max_tokens": 64,
        "threads": 1,
        "device": "cpu",
        "poll_s": 0.1,
        "lease_s": 1.0,
    }


SIGNS = {"POSITIVE": types_pb2.PAIR_SIGN_POSITIVE, "NEGATIVE": types_pb2.PAIR_SIGN_NEGATIVE}


@dataclass
class TrainerWorld:
    trainer: TrainerClient
    sampler: SamplerClient
    encoder: EncoderClient
    index: IndexClient
    space: Space
    corpus: str
    run_id: str

    def start(self, **fields: Any) -> Any:
        """Starts a job over the imported pairs."""
        validation = [(query.text, query.gold) for query in VALIDATION]
        options = {"corpus": self.corpus, "run_ids": [self.run_id], "split": "train", "learning_rate": 1e-3}
        return self.trainer.start_job(**{"validation": validation, **options, **fields})


@dataclass(frozen=True)
class Fleet:
    """A client of all services, these and their addresses by name, and the oracle, which is called `mine`."""

    client: aeenc.AsyncClient
    servers: dict[str, GrpcServer]
    addresses: dict[str, str]
    oracle: FakeOracle


@asynccontextmanager
async def serve_fleet(
    space: Space,
    redis_url: str,
    namespace: str,
    root: Path,
    *,
    encoder: Mapping[str, Any] | None = None,
    index: Mapping[str, Any] | None = None,
    everywhere: Mapping[str, Any] | None = None,
    **trainer: Any,
) -> AsyncIterator[Fleet]:
    """All four services over a space, in this process, once they are ready. Options are further settings."""
    oracle, servers, both = FakeOracle(), dict[str, GrpcServer](), everywhere or {}
    common = {"port": 0, "artifacts_dir": space.store.root, **both}
    redis = {"redis_url": redis_url, "namespace": namespace}

    def targets(*names: str) -> dict[str, str]:
        return {f"{name}_target": f"127.0.0.1:{servers[name].port}" for name in names}

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        port = await enter(serving(oracle_pb2_grpc.add_OracleServiceServicer_to_server, oracle))
        oracles = {"mine": {"target": f"127.0.0.1:{port}", "max_attempts": 1}}
        encoding = serve_encoder(space, *redis.values(), root / "encoder", **both, **(encoder or {}))
        servers["encoder"], _ = await enter(encoding)
        searching = {**common, **targets("encoder"), **(index or {})}
        servers["index"] = await enter(build_index(IndexSettings(**searching)))
        sampling = {**common, **redis, **targets("index"), "oracles": oracles, "poll_s": 0.1}
        servers["sampler"] = await enter(build_sampler(SamplerSettings(**sampling)))
        training = {**both, **targets("encoder", "index", "sampler"), **trainer}
        servers["trainer"], _ = await enter(serve_trainer(space, *redis.values(), root / "trainer", **training))
        addresses = {name: f"127.0.0.1:{server.port}" for name, server in servers.items()}
        client = await enter(aeenc.AsyncClient(**addresses))
        await until(lambda: all(server.readiness.healthy for server in servers.values()))
        yield Fleet(client, servers, addresses, oracle)


@pytest.fixture
async def world(
    space: Space, corpus: str, redis_url: str, namespace: str, tmp_path: Path
) -> AsyncIterator[TrainerWorld]:
    imported = tmp_path / "imported.jsonl"
    imported.write_text(json.dumps({"query": QUERIES[9], "positive": FACTS[9], "negative": FACTS[10]}) + "\n")
    named = {"data_sets": {"imported": imported}, "base_models": {"another": str(tmp_path / "another")}}
    curves = str(tmp_path / "curves")
    async with serve_fleet(space, redis_url, namespace, tmp_path, **named, tensorboard_dir=curves) as fleet:
        client = fleet.client
        pairs = [
            types_pb2.Pair(query=pair.query, premise_id=pair.premise_id, premise=pair.premise, sign=SIGNS[pair.sign])
            for pair in PAIRS
        ]
        run_id = (await client.sampler.import_pairs(corpus, pairs)).run_id
        yield TrainerWorld(client.trainer, client.sampler, client.encoder, client.index, space, corpus, run_id)


def result_of(files: JobFiles) -> dict[str, Any]:
    """Runs a job to its end in this process, and returns how it ended."""
    run_job(files)
    result = files.result()
    assert result is not None
    return result
