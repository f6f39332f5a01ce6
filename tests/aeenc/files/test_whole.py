"""Files that appear whole, and those that are written as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aeenc.errors import AlreadyExists, InvalidArgument
from aeenc.files.whole import is_stdout, whole_file, whole_folder


def test_a_file_appears_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / ("pairs" * 50 + ".json")  # 255 letters, the most that a name may have
    path.write_text("old\n")

    def write(text: str, error: Exception | None = None) -> None:
        with whole_file(path) as file:
            file.write(text)
            if error is not None:
                raise error

    with pytest.raises(KeyError):
        write("half", KeyError())
    assert path.read_text() == "old\n"
    write("new\n")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("new\n", [path])
    (link := tmp_path / "link").symlink_to(old := path)
    path = link
    write("newer\n")
    assert (link.is_symlink(), old.read_text()) == (True, "newer\n")
    path = tmp_path / "new" / "folder" / "pairs.jsonl"
    write("new\n")
    assert path.read_text() == "new\n"


def test_a_pipe_is_written_as_it_is_and_standard_output_is_known_by_its_names(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with whole_file(tmp_path / "pipe") as file:
        file.write("pairs\n")
    assert os.read(reader, 100) == b"pairs\n"
    os.close(reader)
    names = ["-", "/dev/stdout", "/proc/self/fd/1", "/dev/stderr", "/dev/fd/2", "out"]
    assert [is_stdout(name) for name in names] == [True] * 3 + [False] * 3


def test_a_folder_appears_whole_behind_a_link_and_never_in_place_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("empty", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "lost").symlink_to("made")
    for name, behind in (("link", "empty"), ("lost", "made")):
        with whole_folder(tmp_path / name) as folder:
            (folder / "pairs.jsonl").touch()
        assert (tmp_path / behind / "pairs.jsonl").exists()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InvalidArgument, match="is the working directory"), whole_folder("."):
        pass
    with pytest.raises(AlreadyExists, match="is not an empty folder"), whole_folder("../made/pairs.jsonl"):
        pass
    assert sorted(one.name for one in tmp_path.iterdir()) == ["empty", "here", "link", "lost", "made"]


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
@pytest.mark.parametrize("flags", [os.O_APPEND, 0], ids=[">>", "1<>"])
def test_the_file_behind_a_descriptor_is_gone_on_with(tmp_path: Path, folder: str, flags: int) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    descriptor = os.open(path, os.O_RDWR | flags)
    os.lseek(descriptor, 0, os.SEEK_END)
    with whole_file(f"{folder}/{descriptor}") as file:
        file.write("pairs\n")
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert path.read_text() == "before\npairs\nafter\n"


@pytest.mark.parametrize(("mode", "kept"), [("a", "before\n"), ("w", "")], ids=[">>", ">"])
def test_a_redirected_standard_output_is_gone_on_with(tmp_path: Path, mode: str, kept: str) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    code = """from aeenc.files.whole import whole_file
with whole_file("/dev/stdout") as file:
    file.write("pairs\\n")
print("told")"""
    with path.open(mode) as redirected:
        subprocess.run([sys.executable, "-c", code], stdout=redirected, check=True)
    assert path.read_text() == f"{kept}pairs\ntold\n"
