"""What a release promises, as far as it needs no network: archives that depend on nothing but the commit."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools import release
from tools.pinned_venv import SetupError


def sdist(path: Path, *, moment: int, person: str, mode: int, reverse: bool) -> None:
    files = [("pkg/a.py", b"a = 1\n"), ("pkg/b.py", b"b = 2\n")]
    with tarfile.open(path, "w:gz") as tar:
        for name, content in sorted(files, reverse=reverse):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = len(content), moment, person, mode
            tar.addfile(member, io.BytesIO(content))


def test_an_sdist_forgets_who_made_it_and_when(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, moment, person, mode in ((first, 1, "ada", 0o664), (second, 2_000_000_000, "bob", 0o600)):
        folder.mkdir()
        sdist(folder / "pkg.tar.gz", moment=moment, person=person, mode=mode, reverse=folder is second)
    with pytest.raises(SetupError, match=r"not the same bytes: pkg\.tar\.gz"):
        release.compare(first, second)
    for folder in (first, second):
        release.normalise(folder / "pkg.tar.gz", 1_700_000_000)
    release.compare(first, second)
    with tarfile.open(first / "pkg.tar.gz") as tar:
        assert [(member.name, member.mtime) for member in tar] == [
            ("pkg/a.py", 1_700_000_000),
            ("pkg/b.py", 1_700_000_000),
        ]


def test_a_chart_is_packed_to_the_same_bytes_with_all_that_helm_reads(tmp_path: Path):
    for number, folder in enumerate((tmp_path / "first", tmp_path / "second")):
        chart = shutil.copytree(release.CHART.parent, folder / "chart", symlinks=False)
        for path in chart.rglob("*"):
            os.utime(path, (number, number))
            path.chmod(0o700 if number else 0o755)
        (folder / "out").mkdir()
        release.package_chart(chart, folder / "out", 1_700_000_000)
    release.compare(tmp_path / "first" / "out", tmp_path / "second" / "out")
    with tarfile.open(tmp_path / "first" / "out" / f"aeenc-{release.version()}.tgz") as tar:
        names = {member.name for member in tar if member.isfile()}
    assert {"aeenc/Chart.yaml", "aeenc/values.yaml", "aeenc/templates/_pod.tpl", "aeenc/files/alerts.yml"} < names
    assert not [name for name in names if "examples" in name], "as .helmignore says"


def test_what_a_build_writes_is_readable_whatever_files_the_person_keeps_to_themselves(tmp_path: Path):
    mask = os.umask(0o077)
    try:
        release.command(["touch", "built"], cwd=tmp_path)
    finally:
        os.umask(mask)
    assert (tmp_path / "built").stat().st_mode & 0o777 == 0o644


def test_a_file_that_only_one_build_has_is_a_difference(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (first / "pkg.whl").write_bytes(b"")
    with pytest.raises(SetupError, match=r"pkg\.whl"):
        release.compare(first, second)


def test_a_wheel_that_lacks_what_an_index_shows_is_refused(tmp_path: Path):
    wheel = tmp_path / "pkg-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pkg-0.dist-info/METADATA", f"Name: pkg\nVersion: {release.version()}\n\nshort")
    with pytest.raises(SetupError, match=r"no description, project urls, classifiers, licence file, py\.typed"):
        release.check_metadata(wheel)


def test_another_version_in_a_pyproject_is_outdated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    moved = tmp_path / "__init__.py"
    moved.write_text('__version__ = "1.4.2"\n')
    monkeypatch.setattr(release, "VERSIONED", moved)
    texts = {path.relative_to(release.ROOT).as_posix(): text for path, text in release.outdated().items()}
    assert '"aeenc>=1.4,<2"' in texts["pyproject.toml"]
    assert 'version = "1.4.2"' in texts["clients/mcp/pyproject.toml"]
    assert texts["clients/typescript/package-lock.json"].count('"version": "1.4.2"') == 2
    assert '"version": "1.4.2"' in texts["clients/typescript/package.json"]
    assert "\nversion: 1.4.2\nappVersion: 1.4.2\n" in texts["deploy/helm/aeenc/Chart.yaml"]
    assert "\nversion: 1.4.2\n" in texts["CITATION.cff"]
