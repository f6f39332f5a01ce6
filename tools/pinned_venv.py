"""Virtual environments that hold exactly what a lock file names, installed by uv or else by pip.

Standard library only: this runs before anything is installed. It installs, and never resolves: making locks is
`make lock`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tools.uv import Uv, UvError

ROOT = Path(__file__).resolve().parent.parent


class SetupError(Exception):
    """Something the user can put right; the message says how."""


class PinnedVenv:
    """A virtual environment and the stamp that says what was installed into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self._stamp = path / ".installed"
        self._uv: Uv | None = None
        self._tries_uv = os.environ.get("UV") != "0"

    @classmethod
    def locked(cls, path: Path, lock: Path) -> PinnedVenv:
        """The environment at `path` with what a lock names; makes it on first use."""
        venv, key = cls(path), key_of((lock,))
        if not venv.is_current(key):
            venv.create()
            venv.install_lock(lock)
            venv.mark_current(key)
        return venv

    def is_current(self, key: str) -> bool:
        """Whether the environment works and was last installed for this key."""
        return self._stamp.is_file() and self._stamp.read_text().strip() == key and self.python.exists()

    def mark_current(self, key: str) -> None:
        """Write the stamp: from now on `is_current(key)` holds."""
        self._stamp.write_text(key + "\n")

    def create(self) -> None:
        """Make the environment with this interpreter, unless a working one is there."""
        self._stamp.unlink(missing_ok=True)
        if self._works():
            return
        say(f"creating {relative(self.path)} with Python {sys.version.split()[0]}")
        result = subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.path)], check=False)
        if result.returncode:
            raise SetupError(
                "this Python cannot create virtual environments. On Debian and Ubuntu install the package "
                f"python3.{sys.version_info.minor}-venv, or choose another interpreter: make PYTHON=/path/to/python3.11"
            )

    def install_lock(self, lock: Path) -> None:
        """Install a hashed lock, exactly and without resolving."""
        started = time.monotonic()
        say(f"installing {relative(lock)}")
        self.install("--no-deps", "--require-hashes", "-r", str(lock))
        say(f"installing {relative(lock)}: {time.monotonic() - started:.0f} s")

    def install(self, *arguments: str) -> None:
        """Install as `pip install` with these arguments does.

        Raises:
            SetupError: neither uv nor pip can; pip has said why on the terminal.
        """
        if uv := self._get_uv():
            try:
                return uv.install(*arguments)
            except UvError as error:
                self._give_up_uv(error)
        quiet = [] if sys.stdout.isatty() else ["-qq"]
        command = [str(self.python), "-m", "pip", "install", *arguments, "--disable-pip-version-check", *quiet]
        if subprocess.run(command, cwd=str(ROOT), stdin=subprocess.DEVNULL, check=False).returncode:
            raise SetupError(
                f"pip failed (above): pip install {' '.join(arguments)}\nWithout a network, point pip at a mirror or a "
                "folder of wheels (PIP_INDEX_URL, PIP_FIND_LINKS) and run the same command again; what is done stays "
                "done."
            )
        return None

    def would_install(self, *arguments: str) -> list[str]:
        """The names of the distributions that `install` would add.

        Raises:
            SetupError: nothing fits the arguments; pip has said what.
        """
        if uv := self._get_uv():
            try:
                return uv.would_install(*arguments)
            except UvError as error:
                self._give_up_uv(error)
        command = [str(self.python), "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", *arguments]
        result = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=False)
        if result.returncode:
            raise SetupError(f"pip finds no {' '.join(arguments)} for this machine (above)")
        return [entry["metadata"]["name"].lower() for entry in json.loads(result.stdout)["install"]]

    def _get_uv(self) -> Uv | None:
        """The uv to install with; None where pip does it."""
        if self._uv is None and self._tries_uv:
            try:
                self._uv = Uv.of(self.python)
            except UvError as error:
                self._give_up_uv(error)
        return self._uv

    def _give_up_uv(self, error: UvError) -> None:
        self._uv, self._tries_uv = None, False
        say(f"uv cannot install this ({error}); going on with pip, which takes minutes")

    def _works(self) -> bool:
        if not self.python.exists():
            return False
        command = [str(self.python), "-c", "import sys; print(*sys.version_info[:2]); import pip"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.returncode == 0 and tuple(map(int, result.stdout.split())) >= (3, 11)


def key_of(files: Sequence[Path], *also: str) -> str:
    """A key that changes when one of the files, the interpreter, or the place of this repository does."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    for text in (str(ROOT), sysconfig.get_python_version(), *also):
        digest.update(b"\0" + text.encode())
    return digest.hexdigest()


def say(message: str, *, file: TextIO | None = None) -> None:
    """One line to the person who waits."""
    print(f"setup: {message}", flush=True, file=file or sys.stdout)


def relative(path: Path) -> str:
    """The path as the user would type it in the repository's root."""
    return os.path.relpath(path, ROOT)
