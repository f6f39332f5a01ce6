"""A client that keeps calling Retrieve while something else happens, and remembers who answered and what failed."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import aeenc
from aeenc import errors

CALLERS = 4


class SwapWatch:
    """Calls from a thread of its own inside `with`. Its client repeats nothing, so no failure is hidden."""

    def __init__(self, targets: dict[str, Any], corpus: str, texts: Sequence[str]) -> None:
        self._targets, self._corpus, self._texts = targets, corpus, texts
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._call()), daemon=True)
        self.requests = 0
        self.failures: list[str] = []
        self.first_answer_at: dict[str, float] = {}

    def __enter__(self) -> SwapWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def await_version(self, version: str, timeout_s: float) -> float:
        """When a version first answered, on the monotonic clock. Raises DeadlineExceeded when it does not."""
        deadline = time.monotonic() + timeout_s
        while version not in self.first_answer_at:
            if time.monotonic() > deadline:
                raise errors.DeadlineExceeded(f"{version} has not answered {timeout_s:.0f} s after its publication")
            time.sleep(0.01)
        return self.first_answer_at[version]

    async def _call(self) -> None:
        async with aeenc.connect_async(**self._targets, retry=False) as client:
            await asyncio.gather(*(self._caller(client, offset) for offset in range(CALLERS)))

    async def _caller(self, client: aeenc.AsyncClient, offset: int) -> None:
        for text in itertools.islice(itertools.cycle(self._texts), offset, None):
            if self._end.is_set():
                return
            self.requests += 1
            try:
                answer = await client.index.retrieve(self._corpus, [text], k=10, truncate=True)
            except errors.AeencError as error:
                self.failures.append(f"{error.code}: {error.message}")
            else:
                self.first_answer_at.setdefault(answer.model_version, time.monotonic())
