"""The circuit breaker: tells a model that fails every run from texts that fail, and says when it computes again.

After FAILURES failed calls in a row, or one whose worker died or hung, a probe goes through the queue and the workers
as a call does. While probes fail, the version is marked as failing, from which readiness is derived. It decides nothing
about calls and replaces no worker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from aeenc.errors import AeencError
from services.encoder.batching.batcher import MODEL_FAILED, OUT_OF_MEMORY, WORKER_DIED, WORKER_STUCK, Batcher
from services.encoder.rollout.versions import Versions
from services.encoder.runtime.model import Model
from services.kit.concurrency import cancel_all
from services.kit.logs import get

log = get(__name__)

FAILURES = 5
PROBE_S = 1.0
PROBE_TOKENS = 4


class Breaker:
    """Counts failures by version and precision. Used from the event loop only."""

    def __init__(self, versions: Versions, batcher: Batcher, on_change: Callable[[], None]) -> None:
        self._versions, self._batcher, self._on_change = versions, batcher, on_change
        self._failures: Counter[tuple[str, str]] = Counter()
        self._probes: dict[tuple[str, str], asyncio.Task[None]] = {}

    def passed(self, model: Model, precision: str) -> None:
        """Notes a call that was computed."""
        self._failures.pop((model.version, precision), None)

    def failed(self, model: Model, precision: str, error: AeencError) -> None:
        """Notes a call that failed, and probes the model when it may be the model's own fault."""
        if error.reason not in {MODEL_FAILED, OUT_OF_MEMORY, WORKER_DIED, WORKER_STUCK}:
            return
        key = (model.version, precision)
        self._failures[key] += 1
        is_suspect = error.reason in {WORKER_DIED, WORKER_STUCK} or self._failures[key] >= FAILURES
        if is_suspect and key not in self._probes:
            self._probes[key] = asyncio.create_task(self._probe(model, precision))

    async def close(self) -> None:
        """Ends the probes."""
        await cancel_all(list(self._probes.values()))

    async def _probe(self, model: Model, precision: str) -> None:
        """Probes a model until it computes or is no longer loaded."""
        key = (model.version, precision)
        text = model.description.text_of(PROBE_TOKENS)
        try:
            while self._versions.models.get(model.version) is model:
                try:
                    await self._batcher.encode(model.runners[precision], [text], "interactive")
                except AeencError as error:
                    self._mark(model, precision, error.message)
                else:
                    self._mark(model, precision, "")
                    return
                await asyncio.sleep(PROBE_S)
        finally:
            self._failures.pop(key, None)
            del self._probes[key]

    def _mark(self, model: Model, precision: str, failure: str) -> None:
        before = model.failing.pop(precision, "")
        if failure:
            model.failing[precision] = failure
        if bool(failure) != bool(before):
            tell, what = (log.error, "a model fails every run") if failure else (log.info, "a model computes again")
            tell(what, version=model.version, precision=precision, reason=failure or before)
        self._on_change()
