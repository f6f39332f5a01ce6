"""A base model of word vectors: its file, its encoder, and the way of a checkpoint from there to what serves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from aeenc.errors import DataLoss, FailedPrecondition, InvalidArgument
from services.bigru import BiGru, BiGruConfig
from services.corpus.generation import PremiseRecord
from services.trainer.jobs.files import JobFiles, TrainingPlan
from services.trainer.jobs.job import JobConfig
from services.trainer.models.word_vectors import WordVectors, write_base_model
from services.trainer.train.encoder import prepare_torch
from services.trainer.train.job import run_job
from services.transformer import PooledTransformer, load_transformer
from support.models.base_model_vectors import TEXTS, exported, least_cosine, ours, served
from support.models.tiny_checkpoints import DIM, WORDS
from support.worlds.trainer_world import FACTS, PAIRS, Space, export_space, result_of


def vectors_file(path: Path, header: str = "", words: list[str] = WORDS) -> Path:
    draw = np.random.default_rng(0)
    rows = [f"{word} {' '.join(f'{value:.4f}' for value in draw.normal(size=6))}" for word in words]
    path.write_text(header + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base_model(WordVectors.read(vectors_file(tmp_path / "words.vec")), tmp_path / "base", dim=DIM)


def test_files_with_and_without_a_header_are_the_same(tmp_path: Path):
    plain = WordVectors.read(vectors_file(tmp_path / "glove.txt"))
    headed = WordVectors.read(vectors_file(tmp_path / "wiki.vec", f"{len(WORDS)} 6\n"))
    assert plain.words == headed.words == list(dict.fromkeys(WORDS))
    assert np.array_equal(plain.vectors, headed.vectors)
    assert WordVectors.read(tmp_path / "wiki.vec", most=3).words == plain.words[:3]
    with pytest.raises(InvalidArgument, match="words: must be at least 1, got 0"):  # before the file is read
        WordVectors.read(tmp_path / "absent", most=0)


def test_a_word_of_glove_may_have_spaces_and_the_first_of_equal_words_counts(tmp_path: Path):
    path = tmp_path / "words.txt"
    path.write_text("sun 1 2\n. . 3 4\nsun 5 6\nÄpfel 7 8\n")
    found = WordVectors.read(path)
    assert (found.words, found.vectors.tolist()) == (["sun", ". .", "Äpfel"], [[1, 2], [3, 4], [7, 8]])
    assert not found.lowercase


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", ":1: no word"),
        (b"2 0\n", ":1: 0 values a word"),
        ("2 ²\n".encode(), ":1: not a word and 1 numbers"),
        (b"sun 1 2\nmoon 1\n", ":2: not a word and 2 numbers"),
        (b"sun 1 2\nmoon 1 x\n", ":2: not a word and 2 numbers"),
        (b"sun 1 2\nmoon 1 nan\n", ":2: not a word and 2 numbers"),
        (b"sun 1 2\n\n 1 2\n", ":3: not a word and 2 numbers"),
        (b"sun\n", ":1: not a word and 0 numbers"),
        (b"2 2\nsun \x00\x00\x80\x3f\xff", ":2: byte"),
    ],
)
def test_damage_is_named_with_file_and_line(tmp_path: Path, data: bytes, said: str):
    path = tmp_path / "words.vec"
    path.write_bytes(data)
    with pytest.raises(InvalidArgument) as caught:
        WordVectors.read(path)
    assert caught.value.message.startswith(f"{path}{said}")


def test_the_command_writes_the_same_base_model(tmp_path: Path, base: Path):
    command = [sys.executable, "-m", "services.trainer.models.word_vectors"]
    arguments = [str(tmp_path / "words.vec"), str(tmp_path / "again"), "--dim", str(DIM)]
    subprocess.run([*command, *arguments], check=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (base / name).read_bytes()
    for refused, said in (
        ([str(base / "config.json"), "x"], f"{base / 'config.json'}:1: not a word"),
        ([*arguments[:3], "7"], "hidden_size is 7; give an even one"),
        (["absent", "x"], "[Errno 2] No such file or directory: 'absent'"),
    ):
        broken = subprocess.run([*command, *refused], check=False, capture_output=True, text=True)
        assert broken.returncode == 1
        assert broken.stderr.startswith(said)


def test_the_encoder_is_the_bidirectional_gru_of_torch():
    torch.manual_seed(0)
    model = BiGru(BiGruConfig(vocab_size=20, word_size=6, hidden_size=8)).eval()
    whole = torch.nn.GRU(6, 4, batch_first=True, bidirectional=True)
    for one, suffix in ((model.forwards, ""), (model.backwards, "_reverse")):
        for name, weight in one.named_parameters():
            getattr(whole, f"{name}{suffix}").data.copy_(weight)
    ids = torch.randint(1, 20, (3, 7))
    lengths = [7, 4, 1]
    mask = (torch.arange(7)[None] < torch.tensor(lengths)[:, None]).long()
    found = model(ids, mask).last_hidden_state
    packed = torch.nn.utils.rnn.pack_padded_sequence(model.words(ids), torch.tensor(lengths), batch_first=True)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(whole(packed)[0], batch_first=True)
    for row, length in enumerate(lengths):
        assert torch.allclose(found[row, :length], expected[row, :length], atol=1e-6)
    pooled = PooledTransformer(model, "max")(ids, mask)
    assert torch.allclose(pooled[1], torch.nn.functional.normalize(expected[1, :4].amax(0), dim=0), atol=1e-6)


def test_its_checkpoint_is_served_as_any_other_in_both_runtimes(tmp_path: Path, base: Path):
    artifact, model = exported(tmp_path, base)
    assert (artifact.meta["pooling"], artifact.meta["dim"]) == ("max", DIM)
    tokens = model.tokenization.texts(TEXTS, truncate=True).tokens
    assert least_cosine(model.runners["float32"].run(tokens), ours(base)) >= 0.99999
    assert least_cosine(np.concatenate([model.runners["float32"].run([one]) for one in tokens]), ours(base)) >= 0.99999
    other = served(artifact, torch_device="cpu")
    assert least_cosine(other.runners["float32"].run(tokens), ours(base)) >= 0.99999


def test_files_that_do_not_fit_are_named(tmp_path: Path, base: Path):
    weights = load_file(base / "model.safetensors")
    save_file({name: one for name, one in weights.items() if "forwards" not in name}, base / "model.safetensors")
    with pytest.raises(DataLoss, match=r"model\.safetensors does not fit its config\.json: forwards"):
        load_transformer(base)
    save_file(weights, base / "model.safetensors")
    config = json.loads((base / "config.json").read_bytes())
    (base / "config.json").write_text(json.dumps({**config, "word_size": 7}))
    with pytest.raises(DataLoss, match="does not fit"):
        load_transformer(base)
    del config["word_size"]
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(FailedPrecondition, match="is incomplete"):
        load_transformer(base)
    with pytest.raises(FailedPrecondition, match="hidden_size is 7; give an even one"):
        BiGru(BiGruConfig(vocab_size=3, word_size=2, hidden_size=7))


@pytest.fixture
def recurrent(tmp_path: Path, base: Path) -> Space:
    return export_space(tmp_path, base)


def job(tmp_path: Path, space: Space, **fields: Any) -> JobFiles:
    """A job of analogies over FACTS in the space of word vectors."""
    generation = space.build("c", [PremiseRecord(f"f{n}", text) for n, text in enumerate(FACTS)])
    options = {"loss": "ANALOGY", "mode": "SIAMESE", "batching": "ITEMS", "batch_size": 8, "learning_rate": 1e-3}
    config = JobConfig("c", ("r",), base_version=space.version, **{**options, "items_per_epoch": 40, **fields})
    files = JobFiles(tmp_path / "job")
    files.write_plan(TrainingPlan("j", config, generation, str(space.store.root)))
    files.write_inputs(PAIRS, [])
    return files


def test_analogies_train_it_and_leave_the_word_vectors_alone(tmp_path: Path, recurrent: Space):
    prepare_torch(1)
    version = result_of(job(tmp_path, recurrent))["version"]
    before, artifact = (recurrent.store.open("checkpoints", one) for one in (recurrent.version, version))
    first, trained = (load_file(one.file("model.safetensors")) for one in (before, artifact))
    assert torch.equal(first["words.weight"], trained["words.weight"])
    assert not torch.equal(first["forwards.weight_ih_l0"], trained["forwards.weight_ih_l0"])
    served(artifact)


def test_it_cannot_become_a_cross_encoder(tmp_path: Path, recurrent: Space):
    files = job(tmp_path, recurrent, loss="REGRESSION", mode="CROSS_ENCODER", batching="QUERIES")
    with pytest.raises(
        FailedPrecondition, match="model type aeenc-bigru cannot become a cross-encoder; name a base_model"
    ):
        run_job(files)
