"""What the seeds' benchmarks have trained is found again for the same data and settings, and for no others."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness.rows import ROOT
from benchmarks.seeds import analogy, nli, textgraphs
from services.launcher.fleet import Fleet

SAMPLE = ROOT / "data" / "sample"
INFERENCE = '{"premise": "a wren sings", "hypothesis": "a bird sings", "label": "entailment"}\n'
BASE_MODEL = "AEENC_TRAINER_BASE_MODEL"
Home = Callable[..., Path]


class Stopped(Exception):
    """The services would start now."""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Home:
    """The directory in which a benchmark would start its services."""
    homes: list[Path] = []

    def up(fleet: Fleet, *_: object) -> None:
        homes.append(fleet.home)
        raise Stopped

    monkeypatch.setattr(Fleet, "up", up)
    monkeypatch.setattr(Fleet, "down", lambda _: None)
    for name in [name for name in os.environ if name.startswith("AEENC_")]:
        monkeypatch.delenv(name)
    before = dict(os.environ)

    def started(benchmark, data: Path, *arguments: str, **settings: str) -> Path:
        os.environ.update(settings)
        monkeypatch.setattr(sys, "argv", [benchmark.__name__, str(data), *arguments])
        try:
            with pytest.raises(Stopped):
                benchmark.main()
        finally:
            os.environ.clear()
            os.environ.update(before)
        return homes.pop()

    return started


def inferences(folder: Path) -> Path:
    for name in ("train.jsonl", "test.jsonl"):
        (folder / name).write_text(INFERENCE)
    return folder


def rated(folder: Path) -> Path:
    return Path(shutil.copytree(SAMPLE / "textgraphs", folder, dirs_exist_ok=True))


def answers(folder: Path) -> Path:
    return Path(shutil.copytree(SAMPLE / "answers" / "wikiqa", folder, dirs_exist_ok=True))


BENCHMARKS = [
    pytest.param(nli, inferences, ["--seeds", "1"], id="nli"),
    pytest.param(textgraphs, rated, ["--only", "words", "--trials", "1"], id="textgraphs"),
    pytest.param(analogy, answers, ["--only", "minilm"], id="analogy"),
]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for benchmark in (nli, textgraphs, analogy):
        monkeypatch.setattr(benchmark, "HOME", tmp_path / "homes")
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("benchmark", "write", "arguments"), BENCHMARKS)
def test_the_same_files_and_settings_are_found_again_wherever_the_files_lie(
    home: Home, data: Path, tmp_path: Path, benchmark, write, arguments
):
    first = home(benchmark, write(data), *arguments, AEENC_INDEX_BM25_K1="1")
    moved = tmp_path / "moved" / data.name
    shutil.copytree(data, moved)
    assert home(benchmark, moved, *arguments, AEENC_INDEX_BM25_K1="1") == first


@pytest.mark.parametrize(("benchmark", "write", "arguments"), BENCHMARKS)
def test_each_file_that_is_read_has_a_home_of_its_own(home: Home, data: Path, benchmark, write, arguments):
    homes = [home(benchmark, write(data), *arguments)]
    for path in sorted(path for path in data.rglob("*") if path.suffix in {".jsonl", ".tsv", ".json"}):
        content = path.read_text()
        path.write_text(content + content.splitlines(keepends=True)[-1] if path.suffix != ".json" else content + "\n")
        homes.append(home(benchmark, data, *arguments))
        path.write_text(content)
    assert len(homes) > 2
    assert len({*homes}) == len(homes)


@pytest.mark.parametrize(("benchmark", "write", "arguments"), BENCHMARKS[:2])
def test_another_base_model_has_a_home_of_its_own_and_so_has_a_changed_directory(
    home: Home, data: Path, tmp_path: Path, benchmark, write, arguments
):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    write(data)
    homes = [home(benchmark, data, *arguments)]
    homes += [home(benchmark, data, *arguments, **{BASE_MODEL: name}) for name in ("a/base", "b/base", str(model))]
    (model / "model.safetensors").write_bytes(b"others.")
    homes.append(home(benchmark, data, *arguments, **{BASE_MODEL: str(model)}))
    assert len({*homes}) == 5


@pytest.mark.parametrize(("benchmark", "write", "arguments"), BENCHMARKS)
def test_other_settings_of_a_service_have_a_home_of_their_own(home: Home, data: Path, benchmark, write, arguments):
    write(data)
    settings = [{}, {"AEENC_INDEX_BM25_K1": "0.01"}, {"AEENC_INDEX_BM25_K1": "2"}, {"AEENC_TRAINER_MAX_TOKENS": "64"}]
    assert len({home(benchmark, data, *arguments, **one) for one in settings}) == len(settings)
