"""uv, the fast installer: pinned by `requirements/uv.lock`, and given the configuration of pip, which it does not read.

Standard library only. It never decides what to install. On any failure it raises UvError, and the caller uses pip.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements" / "uv.lock"
# The sections that `pip install` reads; a later one wins.
SECTIONS = ("global", "install", ":env:")
# pip's option: uv's variable, and what separates its values there. pip separates by blanks.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}


class UvError(Exception):
    """uv cannot be had or has failed; the message says why, in one line."""


class Uv:
    """A uv program that installs into the environment of one interpreter."""

    def __init__(self, program: Path, python: Path) -> None:
        self._program, self._python = program, python
        self._environment = environment_of(pip_options(python), os.environ)

    @classmethod
    def of(cls, python: Path) -> Uv:
        """The uv of an environment, or of the one that runs this; installs the pinned one where there is none.

        Raises:
            UvError: pip cannot install it here.
        """
        in_venv = sys.prefix != sys.base_prefix
        own, running = python.with_name("uv"), Path(sys.executable).with_name("uv")
        program = running if in_venv and running.exists() else own
        if not program.exists():
            command = [str(python), "-m", "pip", "install", "--quiet", "--retries", "1", "--no-deps"]
            _run([*command, "--require-hashes", "-r", str(LOCK)], os.environ, shown=False)
        return cls(program, python)

    def install(self, *arguments: str) -> None:
        """Install as `pip install` with these arguments would. Raises UvError."""
        shown = sys.stdout.isatty()
        self._pip_install(*([] if shown else ["--quiet"]), *arguments, shown=shown)

    def would_install(self, *arguments: str) -> list[str]:
        """The names of the distributions that `install` would add. Raises UvError."""
        told = self._pip_install("--dry-run", *arguments, shown=False)
        return [line[3:].partition("==")[0].lower() for line in told.splitlines() if line.startswith(" + ")]

    def _pip_install(self, *arguments: str, shown: bool) -> str:
        command = [str(self._program), "--color", "never", "pip", "install", "--python", str(self._python), *arguments]
        environment = dict(self._environment)
        if "--require-hashes" in arguments:  # exact already; uv refuses a constraint without a hash beside it
            environment.pop("UV_CONSTRAINT", None)
        return _run(command, environment, shown=shown)


def pip_options(python: Path) -> dict[str, str]:
    """What an interpreter's pip is configured to, by the names of its options: files and PIP_* variables."""
    result = subprocess.run([str(python), "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    return options_of(result.stdout.splitlines()) if result.returncode == 0 else {}


def options_of(lines: Iterable[str]) -> dict[str, str]:
    """The options in the output of `pip config list`: lines such as `global.index-url='https://…'`."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in lines:
        key, equals, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if equals and section in by_section:
            by_section[section][option] = str(ast.literal_eval(value))
    return {option: value for section in SECTIONS for option, value in by_section[section].items()}


def environment_of(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that makes uv behave as pip with `options`. What is set for uv already stays."""
    # pip takes the best version of all indexes, uv by default that of the first index that has any.
    translated = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for option, (variable, separator) in VARIABLES.items():
        if values := options.get(option, "").split():
            translated[variable] = separator.join(values)
    return {**translated, **environment}


def _run(command: list[str], environment: Mapping[str, str], *, shown: bool) -> str:
    """Run a command and return what it wrote to stderr, unless it is shown. Raises UvError with that in one line."""
    try:
        result = subprocess.run(
            command,
            cwd=LOCK.parent.parent,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stderr=None if shown else subprocess.PIPE,
            text=True,
            check=False,
        )
    except OSError as error:  # a uv for another machine
        raise UvError(f"{command[0]} does not run: {error}") from error
    told = "" if shown else result.stderr
    if result.returncode:
        raise UvError("above" if shown else _in_one_line(told))
    return told


def _in_one_line(told: str) -> str:
    """The last error of pip, or the beginning of what uv says."""
    said_by_pip = [line for line in told.splitlines() if line.startswith("ERROR: ")]
    return " ".join((said_by_pip[-1] if said_by_pip else told).split())[:300]
