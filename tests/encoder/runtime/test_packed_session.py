"""Texts packed into one row on a GPU get the vectors that they have with padding. Attention is imitated on the CPU."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from services.encoder.runtime.runners import PaddedRunner
from services.encoder.runtime.torch_session import TorchSession, session_of
from services.transformer import DENSE, PooledTransformer, load_transformer
from support.models.tiny_base_models import write_sentence_model

LENGTHS = (9, 2, 5, 3, 9)
BERT = {"model_type": "bert", "hidden_size": 384, "num_attention_heads": 12}


def attention_text_by_text(
    query: Tensor, key: Tensor, value: Tensor, begins: Tensor, begins_of_keys: Tensor, longest: int, longest_key: int
) -> Tensor:
    """Attends within each text, as flash attention does over packed texts. Shapes are (tokens, heads, head)."""
    assert begins is begins_of_keys
    assert (begins.dtype, int(begins[-1])) == (torch.int32, len(query))
    assert longest == longest_key == int(begins.diff().max())
    found = torch.empty_like(query)
    for begin, end in pairwise(begins):
        own = (one[begin:end].transpose(0, 1)[None] for one in (query, key, value))
        found[begin:end] = nn.functional.scaled_dot_product_attention(*own)[0].transpose(0, 1)
    return found


@pytest.fixture
def packed_session() -> Any:
    """Imported here: transformers and torch's compiler take seconds, of each process that collects tests."""
    from services.encoder.runtime import packed_session

    return packed_session


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card and a build of torch that have flash attention."""
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_packed_texts_have_the_vectors_of_padded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed_session: Any, pooling: str
) -> None:
    monkeypatch.setattr(packed_session, "varlen_attn", attention_text_by_text)
    for architecture in packed_session.AFTER_PADDING:
        directory = write_sentence_model(tmp_path / architecture, architecture)
        padded, packed = (PooledTransformer(load_transformer(directory), pooling).eval() for _ in range(2))
        inside = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
        ids = np.random.default_rng(0).integers(5, 20, inside.shape)
        feeds = {
            "input_ids": np.where(inside, ids, padded.transformer.config.pad_token_id),
            "attention_mask": inside.astype(np.int64),
        }
        [expected] = TorchSession(padded, "cpu", half=False).run(None, feeds)
        [found] = packed_session.PackedSession(packed, "cpu").run(["sentence_embedding"], feeds)
        assert (found.dtype, found.shape) == (np.float32, expected.shape), architecture
        assert np.einsum("nd,nd->n", found, expected).min() >= 0.9999, architecture
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-5, architecture


@pytest.mark.parametrize(
    ("change", "device", "patched", "packs"),
    [
        ({}, "cuda:1", (), True),
        ({}, "cpu", (), False),
        ({"model_type": "mpnet"}, "cuda", (), False),  # adds a bias by position
        ({"num_attention_heads": 32}, "cuda", (), False),  # heads of 12
        ({"hidden_size": 4096}, "cuda", (), False),  # of 341
        ({}, "cuda", (torch.cuda, "get_device_capability", lambda _: (7, 5)), False),
        ({}, "cuda", (torch.backends.cuda, "is_flash_attention_available", lambda: False), False),
        ({}, "cuda", (torch.version, "hip", "7.1"), False),
    ],
)
def test_what_flash_attention_cannot_compute_is_padded(
    ampere: None,
    packed_session: Any,
    monkeypatch: pytest.MonkeyPatch,
    change: dict,
    device: str,
    patched: tuple[Any, ...],
    packs: bool,
) -> None:
    if patched:
        monkeypatch.setattr(*patched)
    assert packed_session.can_pack(SimpleNamespace(**{**BERT, **change}), device) is packs


def test_a_linear_layer_after_the_pooling_computes_in_single_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed_session: Any
) -> None:
    monkeypatch.setattr(packed_session, "varlen_attn", attention_text_by_text)
    model = PooledTransformer(load_transformer(write_sentence_model(tmp_path / "model")), "mean").eval()
    model.transformer.add_module(DENSE, nn.Linear(32, 8))
    feeds = {"input_ids": np.array([[5, 6, 7]]), "attention_mask": np.ones((1, 3), np.int64)}
    [expected] = TorchSession(model, "cpu", half=False).run(None, feeds)
    [found] = packed_session.PackedSession(model, "cpu").run(None, feeds)
    assert found.shape == (1, 8)
    assert np.abs(found - expected).max() < 1e-3


def test_what_is_not_padded_is_not_counted_as_padding(packed_session: Any) -> None:
    model = SimpleNamespace(run=lambda *_: [np.ones((1, 1), np.float32)])
    assert PaddedRunner(model, pad_id=0, dim=1).pads
    model.pads = packed_session.PackedSession.pads
    assert not PaddedRunner(model, pad_id=0, dim=1).pads


def test_texts_are_packed_in_half_precision_alone(tmp_path: Path, ampere: None, packed_session: Any) -> None:
    model = PooledTransformer(load_transformer(write_sentence_model(tmp_path / "model")), "mean").eval()
    assert isinstance(session_of(model, "cuda", half=False), TorchSession)
    assert isinstance(session_of(model, "cuda", half=True), packed_session.PackedSession)
    assert model.transformer.dtype == torch.float16
