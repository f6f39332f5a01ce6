"""The operator's cross-encoder as a checkpoint: what is exported, what it scores, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_cross_encoder import MAX_TOKENS, write_tiny_cross_encoder
from trainer_world import Space, trainer_settings

from aeenc import Channel, RegistryClient, TrainerClient, errors
from services.kit.artifacts import Artifact, ArtifactStore, sha256_of
from services.kit.registry import Registry
from services.trainer.__main__ import build
from services.trainer.checkpoints import Checkpoints
from services.trainer.child import Child
from services.trainer.cross_encoder import EXPORTER
from services.trainer.learning.cross_encoder import export_cross_encoder
from services.trainer.settings import TrainerSettings

PAIRS = [
    ("a magnet attracts iron", "a nail is made of iron"),
    ("sun", "moon"),
    ("the sun is a star", "the earth can move because the sun is a kind of star with more heat than the moon"),
    ("ice can melt and water can boil in the heat of the sun", "cold"),
    ("a plant is food", "a rabbit can eat the leaf of a plant"),
]


@dataclass(frozen=True)
class Exported:
    """A tiny cross-encoder's directory and the checkpoint that was made of it."""

    directory: Path
    artifact: Artifact

    def scores(self, pairs: list[tuple[str, str]]) -> Any:
        """What the checkpoint gives for pairs in one batch, from nothing but its own files."""
        import onnxruntime
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.artifact.file("tokenizer.json")))
        tokenizer.enable_truncation(self.artifact.meta["max_tokens"])
        tokenizer.enable_padding(pad_id=self.artifact.meta["pad_id"])
        session = onnxruntime.InferenceSession(
            self.artifact.file("model.onnx").read_bytes(), providers=["CPUExecutionProvider"]
        )
        encodings = tokenizer.encode_batch(pairs)
        columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        names = [put.name for put in session.get_inputs()]
        feeds = {name: np.array([getattr(encoding, columns[name]) for encoding in encodings]) for name in names}
        (output,) = session.get_outputs()
        assert output.name == "score"
        return session.run(None, feeds)[0]


def export(root: Path, **options: Any) -> Exported:
    directory = write_tiny_cross_encoder(root / "model", **options)
    store = ArtifactStore(root / "artifacts")
    version = export_cross_encoder(store, {"directory": str(directory), "base_model": "tiny"})
    return Exported(directory, store.open("checkpoints", version))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(tmp_path_factory.mktemp("cross"))


def reference(directory: Path, pairs: list[tuple[str, str]]) -> Any:
    """transformers' logits, each pair alone."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.inference_mode():
        logits = [model(**tokenizer(*pair, return_tensors="pt", truncation=True)).logits for pair in pairs]
    return torch.cat(logits)[:, 0].numpy()


def test_the_scores_are_the_logits_of_transformers_alone_and_in_any_batch(exported: Exported):
    too_long = (" ".join(["the sun is a star"] * 12), " ".join(["ice can melt"] * 30))
    pairs = [*PAIRS, too_long]
    expected = reference(exported.directory, pairs)
    assert expected.std() > 0.05, "the tiny model tells no pair from another"
    alone = np.concatenate([exported.scores([pair]) for pair in pairs])
    np.testing.assert_allclose(alone, expected, atol=1e-4)
    np.testing.assert_allclose(exported.scores(pairs), alone, atol=1e-5)
    swapped = exported.scores([(premise, query) for query, premise in pairs])
    assert np.abs(swapped - alone).max() > 1e-3, "the query is told from the premise"


def test_a_checkpoint_says_what_it_is_and_proves_itself_with_sixteen_pairs(exported: Exported):
    artifact = exported.artifact
    assert artifact.id.startswith("x")
    assert set(artifact.files) == {"model.onnx", "tokenizer.json", "config.json", "probes.json", "probes.npy"}
    lineage = artifact.meta["lineage"]
    assert (lineage["base_model"], len(lineage["weights_sha256"])) == ("tiny", 64)
    assert {name: value for name, value in artifact.meta.items() if name != "lineage"} == {
        "model_type": "cross-encoder",
        "space_id": "cross-encoder",
        "dim": 1,
        "max_tokens": MAX_TOKENS,
        "pad_id": 0,
        "query_prefix": "",
        "premise_prefix": "",
        "pretrained": False,
        "base_version": "",
        "job_id": "",
        "validation_map": 0.0,
    }
    pairs = json.loads(artifact.file("probes.json").read_bytes())["pairs"]
    scores = np.load(artifact.file("probes.npy"))
    assert (len(pairs), scores.shape, scores.dtype) == (16, (16,), np.float32)
    assert all(len(pair) == 2 and all(pair) for pair in pairs)
    lengths = [len(query.split()) + len(premise.split()) for query, premise in pairs]
    assert min(lengths) < 8
    assert max(lengths) > 24
    np.testing.assert_allclose(np.concatenate([exported.scores([tuple(pair)]) for pair in pairs]), scores, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "max_tokens"),
    [
        (
            {"architecture": "roberta", "pad_id": 1, "typed": False},
            MAX_TOKENS - 2,
        ),  # whose positions begin behind the padding id
        ({"typed": False}, MAX_TOKENS),
    ],
    ids=["model-without", "tokenizer-without"],
)
def test_where_no_token_types_are_given_the_model_takes_none(tmp_path: Path, options: Any, max_tokens: int):
    import onnxruntime

    made = export(tmp_path, **options)
    session = onnxruntime.InferenceSession(made.artifact.file("model.onnx").read_bytes())
    assert [put.name for put in session.get_inputs()] == ["input_ids", "attention_mask"]
    assert (made.artifact.meta["max_tokens"], made.artifact.meta["pad_id"]) == (max_tokens, options.get("pad_id", 0))
    np.testing.assert_allclose(made.scores(PAIRS), reference(made.directory, PAIRS), atol=1e-4)


def without_safetensors(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def another_head(directory: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if "classifier" not in name}, directory / "model.safetensors")


def code_of_its_own(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_bytes())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "evil.py").write_text(f"open({str(directory / 'ran')!r}, 'w')\n")


@pytest.mark.parametrize(
    ("change", "reason"), [(another_head, r"lacks classifier\.bias"), (code_of_its_own, "no sequence classifier")]
)
def test_what_is_no_cross_encoder_is_refused_and_runs_no_code(
    exported: Exported, tmp_path: Path, change: Callable[[Path], None], reason: str
):
    directory = shutil.copytree(exported.directory, tmp_path / "model")
    change(directory)
    with pytest.raises(errors.FailedPrecondition, match=reason):
        export_cross_encoder(ArtifactStore(tmp_path), {"directory": str(directory), "base_model": "tiny"})
    assert not (directory / "ran").exists()
    assert ArtifactStore(tmp_path).list("checkpoints") == []


@pytest.fixture
def settings(space: Space, redis_url: str, namespace: str, tmp_path: Path) -> dict[str, Any]:
    """Settings of a trainer over a copy of the tiny space."""
    shutil.copytree(space.store.root, tmp_path / "artifacts")
    options = trainer_settings(space, redis_url, namespace, tmp_path / "state")
    return {**options, "artifacts_dir": tmp_path / "artifacts"}


@pytest.fixture
def started(settings: dict[str, Any]) -> Callable[[Path], Any]:
    """Starts a trainer with a cross-encoder's directory; each time over the same state."""

    @asynccontextmanager
    async def start(directory: Path) -> AsyncIterator[TrainerClient]:
        async with build(TrainerSettings(**settings, cross_encoder=str(directory))) as server:
            client = TrainerClient(Channel(f"127.0.0.1:{server.port}", timeout_s=50))
            await client.jobs()  # answered once it serves
            yield client
            await client.channel.close()

    return start


@pytest.fixture
def refused(settings: dict[str, Any]) -> Callable[[Path], Any]:
    """Starts a trainer that ends by itself, as its process does, and gives what it ended with."""

    async def start(directory: Path) -> errors.AeencError:
        server = build(TrainerSettings(**settings, cross_encoder=str(directory)))
        with pytest.raises(errors.FailedPrecondition) as caught:
            await server.serve_until_signal()
        return caught.value

    return start


def remember(exported: Exported, state: Path, artifacts: Path) -> None:
    """As if an earlier start had exported it."""
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    source = {"exporter": EXPORTER, "sha256": {name: sha256_of(exported.directory / name) for name in names}}
    (state / "cross-encoder.json").write_text(json.dumps(source))
    (state / "cross-encoder.result").write_text(json.dumps({"version": exported.artifact.id}))
    shutil.copytree(exported.artifact.path, artifacts / "checkpoints" / exported.artifact.id)


@pytest.mark.slow
@pytest.mark.timeout(180)  # two exports in processes of their own
async def test_a_start_exports_and_serves_the_cross_encoder_once(
    started, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    children: list[str] = []
    start_child = Child.start

    async def counted(*arguments: str) -> Child:
        children.append(arguments[0])
        return await start_child(*arguments)

    monkeypatch.setattr(Child, "start", counted)
    directory = write_tiny_cross_encoder(tmp_path / "model")
    async with started(directory) as trainer:
        (made,) = [row for row in await trainer.checkpoints() if row.space_id == "cross-encoder"]
        assert (made.version[0], made.dim, made.pretrained, list(made.labels)) == ("x", 1, False, ["stable"])
        assert (await trainer.info()).default_space_id != "cross-encoder"
    artifact = ArtifactStore(tmp_path / "artifacts").open("checkpoints", made.version)
    scores = Exported(directory, artifact).scores(PAIRS)
    np.testing.assert_allclose(scores, reference(directory, PAIRS), atol=1e-4)
    moved = directory.rename(tmp_path / "moved")
    async with started(moved):
        assert children == ["cross-encoder"], "the same content is not exported again"
    write_tiny_cross_encoder(moved, seed=1)
    async with started(moved) as trainer:
        other = next(row for row in await trainer.checkpoints() if row.space_id == "cross-encoder")
    assert children == ["cross-encoder"] * 2
    serving = await registry.label("cross-encoder", "stable")
    assert serving is not None
    assert (serving.version, serving.revision) == (made.version, 1), "what is served is the operator's to change"
    assert other.version != made.version


@pytest.mark.slow
async def test_what_the_child_refuses_ends_the_start_with_its_reason(refused, exported: Exported, tmp_path: Path):
    directory = shutil.copytree(exported.directory, tmp_path / "model")
    another_head(directory)
    error = await refused(directory)
    assert re.search(r"cannot export the cross-encoder .*lacks classifier", error.message)


@pytest.mark.parametrize(
    ("labels", "change", "reason"),
    [
        (2, None, "has 2 labels, a score is one number"),
        (1, without_safetensors, "has no model.safetensors; export it in safetensors format"),
        (1, shutil.rmtree, "is no directory and cannot be fetched from the hub"),
    ],
    ids=["two-labels", "pickled-weights", "absent"],
)
async def test_a_wrong_setting_ends_the_start_and_names_itself(
    refused, registry: Registry, tmp_path: Path, labels: int, change: Any, reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    directory = write_tiny_cross_encoder(tmp_path / "model", labels=labels)
    if change:
        change(directory)
    assert reason in (await refused(directory)).message
    assert await registry.labels("cross-encoder") == []


async def test_its_labels_move_and_come_back_like_any(started, exported: Exported, registry: Registry, tmp_path: Path):
    remember(exported, tmp_path / "state", tmp_path / "artifacts")
    store = ArtifactStore(tmp_path / "artifacts")
    with store.writer("checkpoint", "checkpoints") as writer:
        for name in exported.artifact.files:
            os.link(exported.artifact.file(name), writer.path / name)
        newer = writer.commit({**exported.artifact.meta, "lineage": {"base_model": "newer"}}, id_prefix="x").id
    async with started(exported.directory) as trainer:
        labels = RegistryClient(trainer.channel)
        with pytest.raises(errors.NotFound):
            await labels.publish(newer)
        await Checkpoints(store, registry).register(newer)
        published = (await labels.publish(newer)).label
        assert (published.space_id, published.name, published.revision) == ("cross-encoder", "stable", 2)
        named = {label.name: label.version for label in await labels.labels(space_id="cross-encoder")}
        assert named == {"stable": newer, "previous": exported.artifact.id}
        back = (await labels.rollback(space_id="cross-encoder")).label
        assert (back.version, back.revision) == (exported.artifact.id, 3)
        assert (await labels.rollouts(space_id="cross-encoder")).label.version == exported.artifact.id
        assert (await labels.rollouts()).label.revision == 1, "the sentence encoder's label has not moved"


async def test_neither_a_job_nor_an_evaluation_takes_a_cross_encoder(
    corpus: str, started, exported: Exported, tmp_path: Path
):
    remember(exported, tmp_path / "state", tmp_path / "artifacts")
    async with started(exported.directory) as trainer:
        with pytest.raises(errors.FailedPrecondition, match="is a cross-encoder, which jobs do not train"):
            await trainer.start_job(corpus=corpus, run_ids=["r"], base_version=exported.artifact.id)
        with pytest.raises(errors.FailedPrecondition, match="is a cross-encoder, which gives no vectors"):
            await trainer.evaluate(corpus, [("sun", ["moon"])], version=exported.artifact.id)
