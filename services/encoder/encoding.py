"""What Encode does: resolve one version, tokenise off the loop, compute in batches, account for the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import FieldViolation, InvalidArgument
from services.encoder.batching import Batcher
from services.encoder.versions import Versions
from services.kit.checks import Limits, check_texts


@dataclass(frozen=True)
class EncodeCall:
    """One call: texts and how to encode them. `deadline_s` counts from now; None means no limit."""

    texts: Sequence[str]
    role: str
    label: str = ""
    version: str = ""
    space_id: str = ""
    truncate: bool = False
    deadline_s: float | None = None


@dataclass(frozen=True)
class EncodeResult:
    """Unit vectors (n, dim), all of one version, and where the time went, in seconds."""

    vectors: NDArray[np.float32]
    model_version: str
    space_id: str
    truncated: int
    total_s: float
    tokenize_s: float
    queue_s: float
    compute_s: float


class Encoding:
    """Encodes calls with the versions that are loaded."""

    def __init__(self, versions: Versions, batcher: Batcher, limits: Limits) -> None:
        self._versions, self._batcher, self._limits = versions, batcher, limits
        self._tokenizers = ThreadPoolExecutor(2, thread_name_prefix="tokenize")

    async def encode(self, call: EncodeCall) -> EncodeResult:
        """Encodes a batch. One version is taken at the start and used to the end, whatever is swapped meanwhile."""
        started = time.monotonic()
        deadline = None if call.deadline_s is None else started + call.deadline_s
        check_texts(call.texts, self._limits)
        if call.role not in {"query", "premise"}:
            violation = FieldViolation("role", "is unspecified; use ROLE_QUERY or ROLE_PREMISE")
            raise InvalidArgument(f"{violation.field}: {violation.description}", violations=[violation])
        model = self._versions.resolve(role=call.role, label=call.label, version=call.version, space_id=call.space_id)
        with self._versions.held(model):
            prefix = model.prefixes[call.role]
            texts = [prefix + text for text in call.texts] if prefix else call.texts
            loop = asyncio.get_running_loop()
            tokenized = await loop.run_in_executor(
                self._tokenizers, lambda: model.tokenization(texts, truncate=call.truncate)
            )
            tokenize_s = time.monotonic() - started
            request = await self._batcher.encode(model, tokenized.ids, deadline)
        return EncodeResult(
            vectors=request.vectors,
            model_version=model.version,
            space_id=model.space_id,
            truncated=tokenized.truncated,
            total_s=time.monotonic() - started,
            tokenize_s=tokenize_s,
            queue_s=request.queued_s,
            compute_s=request.computed_s,
        )

    def close(self) -> None:
        """Stops the threads."""
        self._batcher.close()
        self._tokenizers.shutdown(wait=False, cancel_futures=True)
