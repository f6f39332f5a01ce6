"""Children of the trainer as forks of a process that has loaded torch: each takes a tenth of a second, not six.

That process also knows the graphs of the tiny models. What a child does, how it ends and how it is ended stays as it
is; its start alone is another one, which tests of `Child` and of whole fleets have from the product.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from services.kit import concurrency
from services.trainer.registry import child
from services.trainer.train import __main__ as entry
from services.trainer.train import ranks

CONTEXT = multiprocessing.get_context("forkserver")


@cache
def _serve() -> None:
    """Starts the process that is forked, and waits until it has loaded everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("TOKENIZERS_PARALLELISM", "false")  # it would leave threads
        CONTEXT.set_forkserver_preload(["support.models.known_graphs"])
        first = CONTEXT.Process(target=os.getpid)
        first.start()
        first.join()


class Graphs(dict[Any, Any]):
    """Keeps the graph of every architecture, where a job keeps the last one: tiny ones take little memory."""

    def clear(self) -> None:
        pass


class Fork:
    """A child of the trainer with what `subprocess.Popen` has of one."""

    def __init__(self, arguments: Sequence[str]) -> None:
        reader, self.stdin = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_run, args=(reader, arguments, dict(os.environ)), daemon=True)
        self._process.start()
        reader.close()
        self.pid, self.kill, self.terminate = self._process.pid, self._process.kill, self._process.terminate

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.returncode


def _run(lifeline: Connection, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    os.setsid()
    os.dup2(lifeline.fileno(), 0)
    lifeline.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    entry.main()


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has the children of a trainer or of a job in this process forked."""
    _serve()

    def start(command: Sequence[str], **options: Any) -> Any:
        own = [sys.executable, "-m", child.MODULE]
        return Fork(command[3:]) if list(command[:3]) == own else subprocess.Popen(command, **options)

    starting = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)
    for module in (concurrency, ranks):
        monkeypatch.setattr(module, "subprocess", starting)
