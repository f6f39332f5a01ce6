"""The comparison behind `aeenc doctor --cpu`: each precision with its speed, its cosine and a verdict."""

from __future__ import annotations

import pytest

from services.encoder.rollout import comparison, loading
from services.store.artifacts import ArtifactStore
from support.models.tiny_checkpoints import write_tiny_checkpoint


def test_each_precision_has_a_speed_and_a_cosine_or_the_reason_why_not(
    artifact_store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "bfloat16_refusal", lambda: "there is none")
    passed = {"passed": True, "recipe": "rowwise"}
    checkpoint = write_tiny_checkpoint(artifact_store, seed=3, int8=passed)
    rows = {row["precision"]: row for row in comparison.compare(checkpoint.artifact)}
    assert list(rows) == ["float32", "int8", "bfloat16"]
    assert rows["int8"]["texts_s"] > 0
    assert -1 <= rows["int8"]["cosine"] < 0.9, "the stand-in has other weights"
    assert [row["verdict"] for row in rows.values()].count("passes; auto serves it") == 1
    assert rows["bfloat16"] == {
        "precision": "bfloat16",
        "runtime": "OpenVINO",
        "texts_s": None,
        "cosine": None,
        "verdict": "there is none",
    }
