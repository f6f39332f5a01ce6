"""Retrieval in one process: the answers of the services, from the same directory, without them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import aeenc.local
from aeenc import errors
from aeenc.calls.retrieval import Fusion, Retrieved
from aeenc.values import Premise
from services.local.__main__ import main
from services.store.registry import Registry
from services.store.registry_rows import CROSS_ENCODERS
from support.models.tiny_checkpoints import (
    register,
    rolled_out,
    write_tiny_checkpoint,
    write_tiny_cross_encoder_checkpoint,
)
from support.waiting import eventually
from support.worlds.light_fleet import LightFleet, light_fleet
from support.worlds.trainer_world import FACTS, QUERIES

__all__ = ["light_fleet"]

PREMISES = [
    Premise(id=f"p{n}", text=text, splits=(("train",), ("dev",), ())[n % 3], tags=("odd",) if n % 2 else ())
    for n, text in enumerate(FACTS)
]
EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = [*QUERIES[:3], FACTS[2]]
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filters": {"splits": ["train"], "exclude": ["p3"], "tags": ["odd"]},
    "before": {"before_id": "p9", "drop_self": False},
    "only": {"only_ids": ["p1", "p2", "p7"]},
    "accepted": {"accepted": [["p4"], [], ["p1", "p2"], []], "negative_feedback": 0.3},
    "hybrid": {"mode": "hybrid", "fusion": Fusion(features={"first": 1.0, "words_given_others": 0.5})},
    "words": {"mode": "lexical", "prior": 0.4},
    "rounds": {"mode": "iterative_lexical"},
    "prior": {"mode": "hybrid", "prior": 0.3},
    "re-ranked": {"rerank": 8},
    "re-ranked beside": {"rerank": 8, "rerank_weight": 0.2, "precision": "float32"},
    "label": {"label": "trial"},
}


@pytest.fixture
async def home(light_fleet: LightFleet, registry: Registry, tmp_path: Path) -> Path:
    """The home of a fleet with a corpus, explanations, a trained encoder `stable`, and a cross-encoder."""
    trained = write_tiny_checkpoint(light_fleet.store, seed=1, base_version=light_fleet.base.version)
    await register(registry, trained, label="stable")
    await register(registry, light_fleet.base, label="trial")
    pairs = write_tiny_cross_encoder_checkpoint(light_fleet.store)
    await register(registry, pairs, label="stable")
    state = tmp_path / "encoder" / "labels.json"

    async def saved() -> bool:
        return state.is_file() and all(one.version in state.read_text() for one in (trained, pairs))

    await eventually(saved)
    await light_fleet.client.index.build("science", PREMISES)
    await light_fleet.client.index.put_explanations("science", [(QUERIES[0], ["p1"]), (QUERIES[1], ["p5", "p2"])])
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "encoder").symlink_to(tmp_path / "encoder")
    return tmp_path


def told(found: Retrieved) -> dict[str, Any]:
    names = ("model_version", "space_id", "generation", "rerank_versions", "unknown_splits", "precision", "exact")
    hits = [[(hit.id, hit.text, pytest.approx(hit.score, abs=1e-6)) for hit in hits] for hits in found]
    return {"hits": hits, **{name: getattr(found, name) for name in names}}


@pytest.mark.slow
async def test_answers_are_those_of_the_services(light_fleet: LightFleet, home: Path):
    opened = aeenc.local.open(home)
    for name, options in {**CALLS, "version": {"version": light_fleet.base.version}}.items():
        served = await light_fleet.client.index.retrieve("science", TEXTS, k=5, **options)
        here = opened.retrieve("science", TEXTS, k=5, **options)  # beside a loop that runs
        assert told(here) == told(served), name
        assert any(here), name


async def test_refusals_are_those_of_the_services(light_fleet: LightFleet, home: Path):
    opened = aeenc.local.open(home)
    for corpus, texts, options in (
        ("none", ["x"], {}),
        ("science", [], {}),
        ("science", [" "], {}),
        ("science", "one text", {}),
        ("science", ["x"], {"k": 0}),
        ("science", ["x"], {"speed": 1}),
        ("science", ["x"], {"generation": "g0"}),
        ("science", ["x"], {"only_ids": ["nobody"]}),
        ("science", ["x"], {"label": "nobody"}),
        ("science", ["word " * 500], {}),
        ("science", ["x"], {"mode": "iterative_lexical", "prior": 0.1}),
    ):
        with pytest.raises(errors.AeencError) as served:
            await light_fleet.client.index.retrieve(corpus, texts, **options)
        with pytest.raises(type(served.value)) as here:
            opened.retrieve(corpus, texts, **options)
        assert here.value.reason == served.value.reason
    with pytest.raises(errors.NotFound, match="holds no corpora"):
        aeenc.local.open(home / "encoder")
    await light_fleet.client.index.activate("science", "")
    with pytest.raises(errors.NotFound, match=r"no active generation in .*; activate one, or name one \(generation\)"):
        opened.retrieve("science", ["x"])


async def test_versions_are_computed_as_their_labels_say(
    light_fleet: LightFleet, registry: Registry, home: Path, tmp_path: Path
):
    int8 = {"passed": True, "recipe": "rowwise"}
    query = write_tiny_checkpoint(light_fleet.store, seed=2, base_version=light_fleet.base.version, int8=int8)
    pairs = write_tiny_cross_encoder_checkpoint(light_fleet.store, seed=7, int8=int8)
    [other] = (await light_fleet.client.index.retrieve("science", ["x"], rerank=10)).rerank_versions
    await registry.set_label(CROSS_ENCODERS, "trial", other)
    for checkpoint in (query, pairs):
        await register(registry, checkpoint)
        space_id = checkpoint.artifact.meta["space_id"]
        await rolled_out(registry, space_id, "stable", checkpoint.version, precision="int8")
    opened = aeenc.local.open(home)
    for options in (
        {"version": query.version},
        {"rerank": 8},
        {"rerank": 8, "rerank_versions": [other]},
        {"rerank": 8, "rerank_versions": [other, pairs.version]},
    ):
        served = await light_fleet.client.index.retrieve("science", TEXTS, k=5, **options)
        assert told(opened.retrieve("science", TEXTS, k=5, **options)) == told(served), options
        assert served.precision == "int8"


async def test_artifacts_alone_are_searched_by_the_premise_encoder_or_a_version(light_fleet: LightFleet, home: Path):
    artifacts, base = home / "artifacts", light_fleet.base.version
    stable = aeenc.local.open(home).retrieve("science", ["x"]).model_version
    assert stable != base
    assert aeenc.local.open(artifacts).retrieve("science", ["x"]).model_version == base
    assert aeenc.local.open(artifacts, version=stable).retrieve("science", ["x"]).model_version == stable


async def test_a_generation_that_is_activated_later_answers_at_once(light_fleet: LightFleet, home: Path):
    opened = aeenc.local.open(home)
    before = opened.retrieve("science", ["x"])
    await light_fleet.client.index.add("science", ["a new fact"])
    after = opened.retrieve("science", ["x"])
    assert before.generation != after.generation
    assert aeenc.local.open(home).retrieve("science", ["x"], generation=before.generation).results == before.results
    await light_fleet.client.index.delete("science", before.generation)
    assert not light_fleet.store.has_deleted("generations/science"), "its files go, though it was read before"


async def test_the_script_prints_what_aeenc_retrieve_prints(home: Path, capsys: pytest.CaptureFixture[str]):
    def run(*words: str) -> tuple[object, str, str]:
        with mock.patch.object(sys, "argv", ["aeenc-local", *words]), pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    words = ("science", *TEXTS[:2], "--dir", str(home), "-k", "3")
    expected = aeenc.local.open(home).retrieve("science", TEXTS[:2], k=3)
    status, shown, _ = run(*words)
    assert status == 0
    assert all(hit.id in shown for hits in expected for hit in hits)
    answered = json.loads(run(*words, "--json")[1])
    assert [[one["id"] for one in of["premises"]] for of in answered["results"]] == [
        [hit.id for hit in hits] for hits in expected
    ]
    status, _, told = run("none", "x", "--dir", str(home), "--json")
    assert (status, json.loads(told)["error"]["status"]) == (2, "NOT_FOUND")


async def test_the_example_prints_premises_and_loads_no_server(home: Path):
    code = (
        f"import runpy, sys; runpy.run_path({str(EXAMPLES / 'retrieve_here.py')!r}); "
        "print(sorted({'grpc', 'redis', 'uvloop', 'torch'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, home, "science", TEXTS[0]]
    printed = (await asyncio.to_thread(subprocess.check_output, command, text=True, timeout=60)).splitlines()
    [[best, *_]] = aeenc.local.open(home).retrieve("science", TEXTS[:1], k=1)
    assert (printed[0], printed[-1]) == (f"{best.score:.3f}  {best.text}", "[]")
