"""Vectors of a base model's directory: ours, and those of plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from services.encoder.rollout.loading import LoadOptions, load_model
from services.onnx_devices import CPU, Placement
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.models.space import SpaceSpec, pad_id_of

TEXTS = [
    "sun",
    "the earth is a planet",
    "ice can melt and water can boil " * 3,
    "a magnet can attract iron; wood is not a metal",
]
LEARNED = "the earth is a star"


def spec_of(directory: Path, **options: Any) -> SpaceSpec:
    return SpaceSpec.of(directory, **{"max_tokens": 48, "query_prefix": "", "premise_prefix": "", **options})


def ours(directory: Path, texts: list[str] = TEXTS, prefix: str = "", **options: Any) -> Any:
    from services.trainer.models.batches import Batches
    from services.trainer.train.encoder import encode, load_encoder

    spec = spec_of(directory, **options)
    return encode(load_encoder(directory, spec), Batches.of(directory, spec, pad_id_of(directory)), texts, prefix)


def by_transformers(directory: Path, mode: str, prefix: str = "") -> Any:
    """TEXTS one by one through plain transformers: no padding, no mask of ours."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    pool = {"mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "max": lambda rows: rows.amax(0)}[mode]
    with torch.inference_mode():
        hidden = [model(**tokenizer(prefix + text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
        return torch.stack([torch.nn.functional.normalize(pool(rows), dim=0) for rows in hidden]).numpy()


def least_cosine(found: Any, expected: Any) -> float:
    return float(np.einsum("nd,nd->n", found, expected).min())


def exported(tmp_path: Path, directory: Path, **options: Any) -> Any:
    """The checkpoint of a model, and what the encoder makes of it."""
    from services.trainer.train.export.checkpoint import export_pretrained

    request = {"max_tokens": 48, "query_prefix": "", "premise_prefix": "", "base_model": "tiny", **options}
    store = ArtifactStore(tmp_path / "artifacts")
    artifact = store.open("checkpoints", export_pretrained(store, {"directory": str(directory), **request}))
    return artifact, served(artifact)


def served(artifact: Artifact, **options: Any) -> Any:
    """What the encoder makes of a checkpoint."""
    load = LoadOptions(2**30, Placement([CPU]), **options)
    return load_model(artifact, load, space_id=artifact.meta["space_id"])


def try_one_step(artifact: Artifact) -> None:
    """One step of training with a checkpoint's weights makes the loss smaller."""
    import torch

    from services.trainer.models.batches import Batches
    from services.trainer.train.encoder import load_encoder, tensors_of

    spec = SpaceSpec.of_meta(artifact.meta)
    encoder = load_encoder(artifact.path, spec)
    batches = Batches.of(artifact.path, spec, artifact.meta["pad_id"])
    inputs = tensors_of(batches.inputs([LEARNED, "sun"]))
    target = torch.nn.functional.normalize(torch.ones(32), dim=0)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    loss = -(encoder.eval()(**inputs) @ target).sum()  # without dropout, so that the step can be judged
    loss.backward()
    torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    optimizer.step()
    with torch.inference_mode():
        assert -(encoder(**inputs) @ target).sum() < loss
