"""Jobs in mode CROSS_ENCODER through the RPCs: what they leave is published and scores."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aeenc import Channel, RegistryClient, errors
from aeenc.v1 import trainer_pb2, types_pb2
from services.store.files import sha256_of
from services.trainer.jobs.files import EPOCH_STATE, JobFiles, TrainingPlan
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.losses import Configured
from services.trainer.jobs.runner import base_model_of
from services.trainer.models.base_model import FILES
from support.models.tiny_base_models import write_sentence_model
from support.waiting import until
from support.worlds.tandem_world import PREMISES
from support.worlds.trainer_world import FACTS, QUERIES, TrainerWorld

COMMIT = "a" * 40


@pytest.mark.usefixtures("forks")
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_cross_encoder_learns_to_rerank_what_a_mode_retrieves_is_published_and_asked_for_scores(
    world: TrainerWorld, tmp_path: Path
):
    write_sentence_model(tmp_path / "another", "mpnet")
    await world.index.build(world.corpus, PREMISES)  # with what mode iterative_lexical needs
    options = {"targets": "grades", "candidates": "iterative_lexical", "negatives": "random"}
    job = await world.start(mode="cross_encoder", base_model="another", epochs=1, **options)
    config = job.config
    assert {name: getattr(config, name).name.lower() for name in options} == options
    assert config.base_model == "another"
    assert (config.loss, config.batching) == (trainer_pb2.LOSS_REGRESSION, trainer_pb2.BATCHING_QUERIES)
    assert (config.batch_size, config.hard_negatives) == (8, 6)
    files = JobFiles(tmp_path / "trainer" / "jobs" / job.id)
    await until((files.directory / "inputs.json").is_file, 60)
    candidates = files.candidates()
    job = await world.trainer.wait(job.id)
    assert (job.state, job.error) == (types_pb2.WORK_STATE_SUCCEEDED, "")
    assert set(candidates) == set(QUERIES)
    for text, ids in candidates.items():
        found = await world.index.retrieve(world.corpus, [text], k=200, mode="iterative_lexical")
        assert ids == [hit.id for hit in found[0]]
    checkpoint = await world.trainer.get_checkpoint(job.version)
    assert (checkpoint.space_id, checkpoint.base_version) == ("cross-encoder", world.space.version)
    artifact = world.space.store.open("checkpoints", job.version)
    assert json.loads(artifact.file("config.json").read_bytes())["model_type"] == "mpnet"
    lineage, weights = artifact.meta["lineage"], tmp_path / "another" / "model.safetensors"
    assert (lineage["base_model"], lineage["weights_sha256"]) == ("another", sha256_of(weights))
    registry = RegistryClient(Channel(world.trainer.channel.target, timeout_s=20))
    published = await registry.publish(job.version, wait_s=20)
    await registry.channel.close()
    assert published.complete
    scored = await world.encoder.score(QUERIES[0], FACTS[:3])
    assert (scored.model_version, len(scored.scores)) == (job.version, 3)


def test_a_job_that_has_learned_goes_on_with_its_base_model_whatever_the_settings_name_now(tmp_path: Path):
    paths = [write_sentence_model(tmp_path / name, name) for name in ("mpnet", "bert")]
    before, now = (Configured({}, {"large": str(path)}) for path in paths)
    files = JobFiles(tmp_path / "job")
    files.directory.mkdir()
    assert base_model_of("", now, files) == ""
    plan = TrainingPlan("j", JobConfig("c", ("r",)), "g", "a", base_model=base_model_of("large", before, files))
    files.write_plan(plan)
    assert base_model_of("large", now, files) == str(paths[1]), "nothing is learned yet"
    (files.directory / EPOCH_STATE).touch()
    assert base_model_of("large", now, files) == base_model_of("large", Configured({}, {}), files) == str(paths[0])


@pytest.mark.parametrize(
    ("status", "offline", "refusal", "told"),
    [
        (0, False, errors.Unavailable, r"\(ConnectError\); try later, or name a directory in"),
        (0, True, errors.FailedPrecondition, r"\(OfflineModeIsEnabled\); correct"),
        (200, False, errors.Unavailable, r"\(ReadError\); try later, or name a directory in"),
        (403, False, errors.FailedPrecondition, r"\(HfHubHTTPError\); correct"),
        (429, False, errors.Unavailable, r"\(HfHubHTTPError\); try later, or name a directory in"),
        (500, False, errors.Unavailable, r"\(HfHubHTTPError\); try later, or name a directory in"),
    ],
)
def test_a_hub_that_is_away_for_a_moment_or_breaks_off_is_waited_for_and_one_that_nobody_may_ask_or_that_refuses_is_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    offline: bool,
    refusal: type[errors.AeencError],
    told: str,
):
    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if status != 200:
                self.send_error(status)
                return
            is_file = "/resolve/" in self.path
            listed = [{"type": "file", "path": FILES[0], "size": 100, "oid": COMMIT}]
            content = json.dumps(listed if "/tree/" in self.path else {"id": "nobody/bert-large", "sha": COMMIT})
            self.send_response(200)
            headers = {"Content-Length": 100 if is_file else len(content), "ETag": '"e"', "X-Repo-Commit": COMMIT}
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.end_headers()
            if not is_file:
                self.wfile.write(content.encode())
            elif self.command == "GET":  # breaks off: a reset
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

        do_HEAD = do_GET  # noqa: N815

    (tmp_path / "nobody").mkdir()  # a folder with an organisation's name makes none of its models a path
    monkeypatch.chdir(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        port = server.server_port if status else 9
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url := f"http://127.0.0.1:{port}")
        template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        with pytest.raises(refusal, match=rf"bert-large' is not a directory and .* {told} AEENC_TRAINER_BASE_MODELS"):
            base_model_of("large", Configured({}, {"large": "nobody/bert-large"}), JobFiles(tmp_path))
        server.shutdown()


@pytest.mark.parametrize(
    ("number", "refusal", "told"),
    [
        (errno.ENOSPC, errors.Unavailable, r"\(OSError\): No space left on device; mend that, or set HF_HOME"),
        (errno.EACCES, errors.FailedPrecondition, r"\(PermissionError\): Permission denied; mend that, or set HF_HOME"),
    ],
)
def test_a_disk_that_fails_is_no_wrong_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, refusal: type[errors.AeencError], told: str
):
    def failing(*_: Any, **__: Any) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("huggingface_hub.snapshot_download", failing)
    with pytest.raises(refusal, match=told):
        base_model_of("large", Configured({}, {"large": "nobody/bert-large"}), JobFiles(tmp_path))


@pytest.mark.parametrize("name", ["/models/bert", "./bert", "../bert", "~/bert"])
def test_a_path_without_a_directory_is_never_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    monkeypatch.chdir(tmp_path)
    told = f"{name}' is a path, and no directory is there; correct AEENC_TRAINER_BASE_MODELS"
    with pytest.raises(errors.FailedPrecondition, match=re.escape(told)):
        base_model_of("large", Configured({}, {"large": name}), JobFiles(tmp_path))


async def test_options_that_a_loss_has_no_use_for_are_refused_by_name(world: TrainerWorld):
    needless: list[tuple[str, dict[str, Any]]] = [
        ("full_corpus_softmax", {"targets": "grade_distribution", "candidates": "lexical", "negatives": "none"}),
        ("full_corpus_softmax", {"base_model": "another", "margin": 0.2, "hard_negatives": 2, "prototypes": 5}),
        ("triplet_margin", {"temperature": 0.2, "refused_weight": 2.5, "hard_negatives": 2, "guide_margin": 0.1}),
        ("multiple_negatives_ranking", {"guide_margin": 0.1, "margin": 0.2, "refused_weight": 2.5}),
        ("nli_classification", {"temperature": 0.2, "margin": 0.2}),
        ("regression", {"batching": "items", "regularization": 0.1, "temperature": 0.2, "margin": 0.2}),
    ]
    for loss, options in needless:
        mode = "cross_encoder" if loss == "regression" else "single"
        for name, value in options.items():
            told = f"config.{name}: is {value}, which {loss} has no use for; leave it out"
            with pytest.raises(errors.InvalidArgument, match=f"(?i){re.escape(told)}"):
                await world.start(mode=mode, loss=loss, **{name: value})
