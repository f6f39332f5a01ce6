"""A cross-encoder's checkpoint: what it scores, what it says of itself, and what is no cross-encoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aeenc import errors
from services.store.artifacts import ArtifactStore
from services.trainer.train.export.cross_encoder import export_cross_encoder
from support.models.tiny_cross_encoders import (
    MAX_TOKENS,
    PAIRS,
    Exported,
    export_tiny_cross_encoder,
    reference,
    take_head,
)


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
    np.testing.assert_allclose(np.concatenate([exported.scores([tuple(pair)]) for pair in pairs]), scores, atol=1e-5)


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

    made = export_tiny_cross_encoder(tmp_path, **options)
    session = onnxruntime.InferenceSession(made.artifact.file("model.onnx").read_bytes())
    assert [put.name for put in session.get_inputs()] == ["input_ids", "attention_mask"]
    assert (made.artifact.meta["max_tokens"], made.artifact.meta["pad_id"]) == (max_tokens, options.get("pad_id", 0))
    np.testing.assert_allclose(made.scores(PAIRS), reference(made.directory, PAIRS), atol=1e-4)


def code_of_its_own(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_bytes())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "evil.py").write_text(f"open({str(directory / 'ran')!r}, 'w')\n")


@pytest.mark.parametrize(
    ("change", "reason"), [(take_head, r"lacks classifier\.bias"), (code_of_its_own, "not a sequence classifier")]
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
