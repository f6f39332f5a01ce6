"""The base models of the paper's Table 1 that say little of themselves: their vectors are the published ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from base_model_vectors import by_transformers, least_cosine, ours, spec_of
from tiny_sentence_models import write_sentence_model
from tiny_table_models import write_simcse
from trainer_world import Space, serve_trainer

from services.trainer.space import space_id_of


def test_an_operator_says_how_a_model_is_pooled_whose_directory_does_not(tmp_path: Path) -> None:
    directory = write_simcse(tmp_path)
    assert least_cosine(ours(directory), by_transformers(directory, "mean")) >= 0.99999
    assert least_cosine(ours(directory, pooling="cls"), by_transformers(directory, "cls")) >= 0.99999
    spaces = {space_id_of(directory, spec_of(directory, pooling=pooling)) for pooling in ("", "mean", "cls", "max")}
    assert len(spaces) == 3


def test_the_operators_pooling_takes_the_place_of_the_directorys(tmp_path: Path) -> None:
    directory = write_sentence_model(tmp_path, pooling={"pooling_mode": "max"})
    assert spec_of(directory).pooling == "max"
    assert spec_of(directory, pooling="cls").pooling == "cls"


@pytest.mark.slow
async def test_a_trainer_that_is_told_another_pooling_exports_its_base_model_again(
    space: Space, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    async with serve_trainer(space, redis_url, namespace, tmp_path, pooling="cls"):
        version = json.loads((tmp_path / "pretrained.result").read_bytes())["version"]
    meta = space.store.open("checkpoints", version).meta
    assert meta["pooling"] == "cls"
    assert meta["space_id"] != space.space_id
