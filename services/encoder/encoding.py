"""What Encode and Score do: resolve one version, tokenise, be admitted, compute in batches, account for the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import InvalidArgument
from services.encoder.admission import Admission
from services.encoder.batching import Batcher
from services.encoder.model import FLOAT32, Model
from services.encoder.queueing import Lane
from services.encoder.tokenization import Tokenized
from services.encoder.versions import Selection, Versions
from services.kit.limits import Limits, check_texts

INLINE_CHARACTERS = 1024  # tokenised on the event loop: under half a millisecond; a thread and back costs a fifth

CHARACTERS_A_TOKEN = 4  # of English text, to estimate what is not tokenised yet
SPECIAL_TOKENS = 2
STREAM_PATIENCE_S = 5.0
MAX_KEY_BYTES = 256


@dataclass(frozen=True)
class EncodeCall:
    """One call: texts and how to encode them. `deadline_s` counts from now; None means no limit.

    `patient`: a stream's batch, which waits a while for room instead of being refused at once.
    """

    texts: Sequence[str]
    role: str
    selection: Selection = field(default_factory=Selection)
    truncate: bool = False
    precision: str = ""
    lane: Lane = "interactive"
    deadline_s: float | None = None
    patient: bool = False


@dataclass(frozen=True)
class ScoreCall:
    """One call: a query and the premises to score against it."""

    query: str
    premises: Sequence[str]
    selection: Selection = field(default_factory=Selection)
    truncate: bool = False
    deadline_s: float | None = None


@dataclass(frozen=True)
class Result:
    """Rows (n, width) of one version, and where the time went, in seconds."""

    rows: NDArray[np.float32]
    model_version: str
    space_id: str
    precision: str
    truncated: int
    total_s: float
    tokenize_s: float
    queue_s: float
    compute_s: float


@dataclass(frozen=True)
class _Work:
    """A checked call: what to compute with which model, and about how many tokens it has."""

    model: Model
    precision: str
    tokenize: Callable[[], Tokenized]
    estimate: int
    characters: int
    lane: Lane = "interactive"
    patience_s: float = 0.0


class Encoding:
    """Encodes and scores with the versions that are loaded."""

    def __init__(self, versions: Versions, batcher: Batcher, admission: Admission, limits: Limits) -> None:
        self._versions, self._batcher = versions, batcher
        self._admission, self._limits = admission, limits
        self._tokenizers = ThreadPoolExecutor(2, thread_name_prefix="tokenize")

    async def encode(self, call: EncodeCall) -> Result:
        """Encodes a batch. One version is taken at the start and used to the end, whatever is swapped meanwhile."""
        started = time.monotonic()
        check_texts(call.texts, self._limits)
        if call.role not in {"query", "premise"}:
            raise InvalidArgument.field("role", "is unspecified; use ROLE_QUERY or ROLE_PREMISE")
        if len(call.selection.routing_key.encode()) > MAX_KEY_BYTES:
            raise InvalidArgument.field("routing_key", f"is over {MAX_KEY_BYTES} bytes; send a hash of it")
        model = self._versions.resolve(call.role, call.selection)
        prefix = model.description.prefixes[call.role]
        texts = [prefix + text for text in call.texts] if prefix else call.texts
        work = _Work(
            model,
            model.choose(call.precision, call.role),
            lambda: model.tokenization.texts(texts, truncate=call.truncate),
            _estimate(texts, model),
            sum(map(len, texts)),
            call.lane,
            STREAM_PATIENCE_S if call.patient else 0.0,
        )
        return await self._run(work, started, call.deadline_s)

    async def score(self, call: ScoreCall) -> Result:
        """Scores premises against a query with one cross-encoder."""
        started = time.monotonic()
        check_texts([call.query], self._limits, "query")
        check_texts(call.premises, self._limits, "premises")
        model = self._versions.resolve_cross_encoder(call.selection)
        work = _Work(
            model,
            FLOAT32,
            lambda: model.tokenization.pairs(call.query, call.premises, truncate=call.truncate),
            _estimate(call.premises, model) + len(call.premises) * _estimate([call.query], model),
            sum(map(len, call.premises)) + len(call.premises) * len(call.query),
        )
        return await self._run(work, started, call.deadline_s)

    async def close(self) -> None:
        """Stops the threads."""
        await self._batcher.close()
        self._tokenizers.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: _Work, started: float, deadline_s: float | None) -> Result:
        """Admits, tokenises and computes. A call is admitted by an estimate, before any work is done for it."""
        deadline = None if deadline_s is None else started + deadline_s
        with self._versions.held(work.model):
            asked = time.monotonic()
            async with self._admission.admitted(work.lane, work.estimate, deadline, work.patience_s):
                tokenizing = time.monotonic()
                tokenized = await self._tokenize(work)
                tokenized_at = time.monotonic()
                runner = work.model.runners[work.precision]
                gathered = await self._batcher.encode(runner, tokenized.tokens, work.lane, deadline)
        return Result(
            rows=gathered.rows,
            model_version=work.model.version,
            space_id=work.model.space_id,
            precision=work.precision,
            truncated=tokenized.truncated,
            total_s=time.monotonic() - started,
            tokenize_s=tokenized_at - tokenizing,
            queue_s=tokenizing - asked + gathered.queue_s,
            compute_s=gathered.compute_s,
        )

    async def _tokenize(self, work: _Work) -> Tokenized:
        if work.characters <= INLINE_CHARACTERS:
            return work.tokenize()
        return await asyncio.get_running_loop().run_in_executor(self._tokenizers, work.tokenize)


def _estimate(texts: Sequence[str], model: Model) -> int:
    """About how many tokens texts have, of which the model sees so many of each at most."""
    most = model.description.max_tokens
    return sum(min(len(text) // CHARACTERS_A_TOKEN + SPECIAL_TOKENS, most) for text in texts)
