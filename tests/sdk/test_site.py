"""The site builds, and a link that leads nowhere stops it. Needs a package index for the site's own packages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools import docs
from tools.pinned_venv import ROOT

COPIED = ("docs", "examples", "tools", "protos", "data/sample", "mkdocs.yml", "README.md", "LICENSE", "build/reference")


@pytest.mark.sdk
def test_the_site_builds_and_a_link_that_leads_nowhere_stops_it(tmp_path: Path):
    docs.write_reference()
    assert docs.build() == 0
    for name in ("clients", "services"):
        (tmp_path / name).symlink_to(ROOT / name)
    for page in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / page, tmp_path)
    for name in COPIED:
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    command = [str(ROOT / ".venv-docs" / "bin" / "python"), "-m", "mkdocs", "build", "--strict", "--site-dir", "out"]

    def build() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    page = tmp_path / "docs" / "people.md"
    whole = page.read_text(encoding="utf-8")
    assert build().returncode == 0
    for link in ("settings.md#no-such-heading", "../examples/no_such_file.py", "no_such_page.md"):
        page.write_text(f"{whole}\n[x]({link})\n", encoding="utf-8")
        broken = build()
        assert broken.returncode == 1
        assert link.split("#")[0] in broken.stderr
