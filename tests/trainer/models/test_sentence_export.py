"""A checkpoint as a directory of sentence-transformers: its vectors are ours on both sides; a side is a base model."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from aeenc.cli import main
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.models.batches import Batches
from services.trainer.models.sentence_export import premise_encoder_of, write_sentence_transformer
from services.trainer.models.space import SpaceSpec
from services.trainer.train.encoder import load_encoder
from services.trainer.train.export.checkpoint import exported_encoder
from services.trainer.train.export.writer import write_checkpoint
from support.models.base_model_vectors import TEXTS, exported, least_cosine, ours, spec_of
from support.models.tiny_base_models import write_sentence_model

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PREFIXES = {"query_prefix": "query: ", "premise_prefix": "passage: ", "max_tokens": 12}


def _space(root: Path, architecture: str = "bert", mode: str = "mean") -> tuple[ArtifactStore, Artifact, Artifact]:
    """A store with a premise encoder, and a query encoder of its space with other weights."""
    base = write_sentence_model(root / "base", architecture, pooling={"pooling_mode": mode})
    premise, _ = exported(root, base, **PREFIXES)
    store = ArtifactStore(root / "artifacts")
    spec = SpaceSpec.of_meta(premise.meta)
    encoder = load_encoder(premise.path, spec)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    meta = {**premise.meta, "pretrained": False, "base_version": premise.id}
    batches = Batches.of(premise.path, spec, premise.meta["pad_id"])
    return store, write_checkpoint(store, exported_encoder(encoder, batches, premise.path), meta), premise


@pytest.mark.parametrize(("architecture", "mode"), [("bert", "mean"), ("mpnet", "cls"), ("roberta", "max")])
def test_both_sides_have_our_vectors_in_sentence_transformers(tmp_path: Path, architecture: str, mode: str):
    library = pytest.importorskip(
        "sentence_transformers", reason="pip install sentence-transformers to compare with it"
    )
    store, query, premise = _space(tmp_path, architecture, mode)
    (tmp_path / "out").mkdir()
    write_sentence_transformer(tmp_path / "out", query, premise_encoder_of(store, query))
    model = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert least_cosine(model.encode_query(TEXTS), _expected(query, "query: ", mode)) >= 0.999999
    assert least_cosine(model.encode_document(TEXTS), _expected(premise, "passage: ", mode)) >= 0.999999


def _expected(artifact: Artifact, prefix: str, mode: str) -> object:
    return ours(artifact.path, prefix=prefix, max_tokens=12, pooling=mode)


def test_one_side_is_a_base_model_with_the_same_vectors_limits_and_prompts(tmp_path: Path):
    _, query, _ = _space(tmp_path)
    (tmp_path / "out").mkdir()
    write_sentence_transformer(tmp_path / "out", query, None)
    assert spec_of(tmp_path / "out", max_tokens=512) == SpaceSpec.of_meta(query.meta)
    assert (ours(tmp_path / "out") == _expected(query, "", "mean")).all()
    again, _ = exported(tmp_path / "again", tmp_path / "out", max_tokens=512)
    assert again.meta["query_prefix"] == "query: "


def _run(*words: object, code: int = 0, says: str = "") -> str:
    """Runs `aeenc`, which ends with `code`; returns what it printed."""
    ended = CliRunner().invoke(main._app(()), [str(word) for word in words])
    assert ended.exit_code == code, ended.output
    assert says in ended.output
    return ended.stdout


def test_the_example_ranks_by_what_the_command_wrote_as_we_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    store, query, premise = _space(tmp_path)
    _run("export", "encoder", query.id, "--artifacts", store.root, "--to", tmp_path / "out")
    text, *facts = TEXTS
    monkeypatch.setattr(sys, "argv", ["exported_encoder.py", str(tmp_path / "out"), text, *facts])
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / "exported_encoder.py"))
    lines = capsys.readouterr().out.splitlines()
    shown = {fact: float(score) for score, fact in (line.split("  ", 1) for line in lines)}
    [asked] = ours(query.path, [text], prefix="query: ", max_tokens=12)
    expected = ours(premise.path, facts, prefix="passage: ", max_tokens=12) @ asked
    assert shown == pytest.approx(dict(zip(facts, expected.tolist(), strict=True)), abs=6e-4)
    assert list(shown.values()) == sorted(shown.values(), reverse=True)


def test_the_command_writes_both_sides_and_refuses_what_it_cannot(tmp_path: Path):
    store, query, premise = _space(tmp_path)
    (damaged := store.root / "checkpoints" / "another").mkdir()
    (damaged / "manifest.json").write_text("{")
    command = ("export", "encoder", query.id, "--artifacts", store.root)
    written = json.loads(_run("--json", *command, "--to", tmp_path / "both"))
    assert written == {"to": str(tmp_path / "both"), "query": query.id, "premise": premise.id}
    assert query.id in (tmp_path / "both" / "README.md").read_text()
    router = json.loads((tmp_path / "both" / "router_config.json").read_text())
    assert [len(router["structure"][side]) for side in ("query", "document")] == [3, 3]
    _run(*command, "--to", tmp_path / "both", code=4, says="is not an empty folder")
    _run("export", "encoder", query.id, "--artifacts-url", "file:///b", "--to", "other", code=2, says="--artifacts")
    for name in ("tokenizer.json", "model.safetensors"):
        whole = (file := premise.path / name).read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        _run(*command, "--to", tmp_path / "alone", code=4, says="--side query")
        file.write_bytes(whole)
    store.delete("checkpoints", premise.id)
    _run(*command, "--to", tmp_path / "alone", code=4, says="--side query")
    _run(*command, "--to", tmp_path / "alone", "--side", "query")
