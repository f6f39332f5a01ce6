"""A loss of one's own: from a script to what encoders serve, and by a name of the operator's settings."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aeenc import RegistryClient, errors
from aeenc.v1 import trainer_pb2
from services.trainer.jobs.losses import LOSSES, loss_of_ones_own
from services.trainer.settings import TrainerSettings
from services.trainer.train.objectives import formula_of
from services.trainer.train.run import run
from support.worlds.trainer_world import (
    FACTS,
    QUERIES,
    VALIDATION,
    MakeJob,
    Space,
    maps_of,
    result_of,
    serve_encoder,
    serve_trainer,
    trainer_settings,
)

ROOT = Path(__file__).resolve().parents[4]
MINE = "services.trainer.train.losses.pairwise_contrastive"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """examples/own_loss.py, without running it."""
    spec = importlib.util.spec_from_file_location("own_loss", ROOT / "examples" / "own_loss.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_loss", module)
    spec.loader.exec_module(module)
    return module


async def test_a_loss_of_a_script_is_trained_published_and_served(
    space: Space, corpus: str, redis_url: str, namespace: str, tmp_path: Path, example: Any
):
    lines = [{"query": query, "positive": FACTS[n], "negative": FACTS[n + 1]} for n, query in enumerate(QUERIES)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings = TrainerSettings(**trainer_settings(space, redis_url, namespace, tmp_path / "script"))
    gold = [(query.text, query.gold) for query in VALIDATION]
    options: dict[str, Any] = {"corpus": corpus, "data_sets": {"mine": tmp_path / "mine.jsonl"}, "validation": gold}
    options |= {"epochs": 4, "learning_rate": 3e-3, "batch_size": 8, "settings": settings, "margin": 0.3}
    options |= {"directory": tmp_path / "begun"}
    async with AsyncExitStack() as stack:
        _, trainer = await stack.enter_async_context(serve_trainer(space, redis_url, namespace, tmp_path / "trainer"))
        _, encoder = await stack.enter_async_context(serve_encoder(space, redis_url, namespace, tmp_path / "encoder"))
        wrong = {**options, "validation": [(QUERIES[0], ["no such fact"])], "directory": tmp_path / "wrong"}
        with pytest.raises(errors.InvalidArgument, match=r"'no such fact' .* is not in the corpus"):
            await asyncio.to_thread(run, example.cosine_hinge, **wrong)
        assert not (tmp_path / "wrong").exists(), "before an epoch"
        version = await asyncio.to_thread(run, example.cosine_hinge, **options)
        with pytest.raises(errors.FailedPrecondition, match="a training of another loss, other options"):
            await asyncio.to_thread(run, example.cosine_hinge, **{**options, "margin": 0.4})
        assert await asyncio.to_thread(run, example.cosine_hinge, **options) == version
        registry = RegistryClient(trainer.channel)
        published = await registry.publish(version, wait_s=20, force=True)
        assert published.complete
        assert (await encoder.encode(["sun"])).model_version == version
        (made,) = [one async for one in trainer.list_checkpoints() if one.version == version]
        assert made.base_version == space.version
    artifact = space.store.open("checkpoints", version)
    assert artifact.meta["lineage"]["custom_loss"] == "cosine_hinge"
    before, after = maps_of(artifact)
    assert after > before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 0}, "config.batch_size: is 0; give 1 to 1024"),
        ({"candidates": "LEXICAL"}, "config.candidates: is LEXICAL, which cosine_hinge has no use for; leave it out"),
        ({"run_ids": ("r1",)}, "run_ids is ['r1'], which only a trainer reads; give their `pairs`"),
    ],
)
def test_a_script_is_refused_what_a_call_is_refused_and_runs_that_it_would_not_read(
    example: Any, options: dict[str, Any], told: str
):
    with pytest.raises(errors.InvalidArgument, match=re.escape(told)):
        run(example.cosine_hinge, corpus="c", **options)


def test_a_loss_of_the_settings_trains_as_the_same_formula_does_by_its_name(space: Space, make_job: MakeJob):
    weights = []
    for dotted in ("", MINE, f"pairs:{MINE}"):
        files = make_job(loss="PAIRWISE_CONTRASTIVE", custom_loss="mine" if dotted else "", epochs=1)
        record = json.loads((files.directory / "job.json").read_bytes()) | {"custom_loss": dotted}
        (files.directory / "job.json").write_text(json.dumps(record))
        made = space.store.open("checkpoints", result_of(files)["version"])
        weights.append(made.files["model.safetensors"].sha256)
    assert len(set(weights)) == 1


async def test_a_call_names_a_loss_of_the_settings_alone(
    space: Space, corpus: str, redis_url: str, namespace: str, tmp_path: Path
):
    mine = tmp_path / "mine.jsonl"
    mine.write_text(json.dumps({"query": "q", "positive": FACTS[0], "negative": FACTS[1]}))
    fields: dict[str, Any] = {"losses": {"mine": MINE}, "data_sets": {"mine": mine}}
    async with serve_trainer(space, redis_url, namespace, tmp_path / "trainer", **fields) as (_, trainer):
        with pytest.raises(errors.NotFound, match=r"no loss 'os.system'; AEENC_TRAINER_LOSSES names: mine"):
            await trainer.start_job(corpus=corpus, data_sets=["mine"], custom_loss="os.system")
        job = await trainer.start_job(corpus=corpus, data_sets=["mine"], custom_loss="mine")
        assert job.config.custom_loss == "mine"
        await trainer.cancel(job.id)


@pytest.mark.parametrize("dotted", ["name", "words:a.b", "scores:a.b", ":"])
def test_what_is_no_dotted_name_of_a_formula_is_refused(dotted: str):
    with pytest.raises(errors.InvalidArgument, match=re.escape(f"got {dotted!r}")):
        loss_of_ones_own(dotted)


@pytest.mark.parametrize("dotted", ["no_such_module.loss", "services.trainer.train.losses.no_such"])
def test_a_formula_that_cannot_be_imported_is_named(dotted: str):
    with pytest.raises(errors.FailedPrecondition, match=f"the loss {dotted} cannot be imported"):
        formula_of(loss_of_ones_own(dotted))


def test_a_loss_over_pairs_stands_in_the_contract_in_its_row_and_in_its_formula():
    """With a test of its formula, four files to write for a further one; all else is generated or reads these."""
    spelled = re.compile(r"pairwise[_-]contrastive|PairwiseContrastive", re.IGNORECASE)
    folders = [ROOT / "services", ROOT / "clients" / "python", ROOT / "protos"]
    files = [path for folder in folders for ending in ("*.py", "*.proto") for path in folder.rglob(ending)]
    naming = {str(path.relative_to(ROOT)) for path in files if spelled.search(path.read_text(encoding="utf-8"))}
    generated = {name for name in naming if "/v1/" in name or name.endswith(("values/trainer.py", "blocking.py"))}
    assert naming - generated | {"protos/aeenc/v1/trainer.proto"} == {
        "protos/aeenc/v1/trainer.proto",
        "services/trainer/jobs/losses.py",
        "services/trainer/train/losses.py",
    }
    assert [f"LOSS_{name}" for name in LOSSES] == trainer_pb2.Loss.keys()[1:]
