"""The first minutes of a stranger: both wheels in an empty environment, outside the checkout, and a fleet from them.

git archive ─▶ wheels ─▶ install (not timed: the download) ─▶ up ─▶ corpus from a file ─▶ retrieve ─▶ down
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.harness.rows import Rows
from tools import release
from tools.pinned_venv import ROOT, PinnedVenv
from tools.setup import install_torch

LIMIT_S = 60.0
FACTS = {
    "f1": "a magnet attracts things that are made of iron",
    "f2": "a nail is made of iron",
    "f3": "ice is water that is frozen",
}


def wheel(rows: Rows, _: object) -> None:
    """Times the four commands after the installation, and what each takes."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _install(root)
        facts = root / "facts.jsonl"
        facts.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in FACTS.items()))
        steps = {
            "up": ("up", "--base-port", "0"),
            "corpus": ("corpus", "build", "facts", "--facts", str(facts)),
            "retrieve": ("retrieve", "facts", "a magnet attracts an iron nail", "-k", "2"),
            "down": ("down",),
        }
        taken: dict[str, float] = {}
        found: set[str] = set()
        try:
            for name, arguments in steps.items():
                started = time.perf_counter()
                told = _aeenc(root, *arguments)
                taken[name] = time.perf_counter() - started
                if name == "retrieve":
                    found = {fact for fact in FACTS if f'"{fact}"' in told}
        finally:
            if "down" not in taken:
                _aeenc(root, "down")
    shares = ", ".join(f"{name} {seconds:.1f}" for name, seconds in taken.items())
    rows.add("two wheels: the premises found first", len(found & {"f1", "f2"}), "premises", "2", found == {"f1", "f2"})
    rows.at_most("two wheels: up, corpus, retrieve, down", sum(taken.values()), "s", LIMIT_S, shares)


def _install(root: Path) -> None:
    """Builds the last commit's wheels and installs them with what `aeenc up` needs; TORCH chooses its build."""
    tools = PinnedVenv.locked(ROOT / ".venv-release", release.LOCK)
    release.build(root / "wheels", tools, folders=("clients/python", "."))
    services, sdk = sorted((root / "wheels").glob("*.whl"), key=lambda path: "services" not in path.name)
    venv = PinnedVenv(root / "venv")
    venv.create()
    install_torch(venv, os.environ.get("TORCH", "torch==2.13.0"))
    venv.install("--compile", f"aeenc-services[one-machine] @ {services.as_uri()}", str(sdk))


def _aeenc(root: Path, *arguments: str) -> str:
    """Runs the installed command in a folder of its own, with nothing of this process but the search path."""
    place = root / "place"
    place.mkdir(exist_ok=True)
    environment = {"PATH": os.defpath, "HOME": str(root), "TMPDIR": tempfile.gettempdir()}
    done = subprocess.run(
        [str(root / "venv" / "bin" / "aeenc"), "--json", *arguments],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"aeenc {' '.join(arguments)} failed: {done.stderr or done.stdout}")
    return done.stdout
