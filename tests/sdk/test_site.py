"""The site builds, and a link that leads nowhere stops it. Needs a package index for the site's own packages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools import docs
from tools.pinned_venv import ROOT

COPIED = ("docs", "tools")  # the first is written to, and the other finds the repository by its own place


@pytest.mark.sdk
def test_the_site_builds_and_a_link_that_leads_nowhere_stops_it(tmp_path: Path):
    docs.write_reference()
    assert docs.build() == 0
    for source in ROOT.iterdir():
        if source.name in COPIED:
            shutil.copytree(source, tmp_path / source.name)
        else:
            (tmp_path / source.name).symlink_to(source)
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
