"""The calls Encode and Score, from checked arguments to rows and timings.

    texts ──► resolve one version ──► Admission (estimate) ──► tokenizer ──► Admission (count) ──► Batcher ──► rows
                   Versions          refuses: RetryInfo     loop or thread   refuses or waits   worker threads

A call takes one version at its start and keeps it to the end, whatever is swapped meanwhile. One with more tokens than
a part of its lane is computed in such parts, one after the other, so that no more of it waits than it holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import AeencError, FailedPrecondition, InvalidArgument, TooLarge
from services.encoder.batching.admission import Admission
from services.encoder.batching.batcher import Batcher, CallRows
from services.encoder.batching.breaker import Breaker
from services.encoder.batching.queues import Lane
from services.encoder.rollout.versions import Selection, Versions
from services.encoder.runtime.model import Model, TokenBatch
from services.encoder.runtime.runners import Tokens
from services.kit.limits import Limits, check_texts

INLINE_CHARACTERS = 1024  # tokenized on the event loop in under 0.5 ms; a thread and back costs 0.2 ms
CHARACTERS_A_TOKEN = 4  # of English text, to estimate tokens before tokenization
SPECIAL_TOKENS = 2
STREAM_PATIENCE_S = 5.0
TOKENIZERS = 2  # calls tokenized at a time
MAX_KEY_BYTES = 256
ENVELOPE_BYTES = 256  # of an answer beside its vectors, and more than they take


@dataclass(frozen=True)
class EncodeCall:
    """Texts and how to encode them. `deadline_s` counts from now; None means no limit.

    `patient`: a batch of a stream, which waits a while for room instead of being refused at once. `is_unary`: one
    message answers it. `name` is what errors call the texts, `caller` with whom the call shares a part of its lane.
    """

    texts: Sequence[str]
    role: str
    selection: Selection = field(default_factory=Selection)
    truncate: bool = False
    precision: str = ""
    lane: Lane = "interactive"
    deadline_s: float | None = None
    patient: bool = False
    is_unary: bool = False
    name: str = "texts"
    caller: str = ""


@dataclass(frozen=True)
class ScoreCall:
    """A query and the premises to score against it; `first_of_ensemble` by the first version of a label's several."""

    query: str
    premises: Sequence[str]
    selection: Selection = field(default_factory=Selection)
    truncate: bool = False
    precision: str = ""
    deadline_s: float | None = None
    first_of_ensemble: bool = False
    caller: str = ""


@dataclass(frozen=True)
class CallResult:
    """Rows (n, width) of one version, the tokens they were computed from, and the time of each step in seconds.

    `ensemble` has the versions of the label that was asked for, where there are several; this one is the first.
    """

    rows: NDArray[np.float32]
    model_version: str
    space_id: str
    precision: str
    truncated: int
    tokens: int
    total_s: float
    tokenize_s: float
    queue_s: float
    compute_s: float
    ensemble: Sequence[str] = ()


@dataclass(frozen=True)
class _PreparedCall:
    """A checked call: its model, how to tokenize its `count` texts or pairs, and an estimate of their tokens."""

    model: Model
    precision: str
    tokenize: Callable[[], TokenBatch]
    count: int
    estimate: int
    characters: int
    caller: str
    lane: Lane = "interactive"
    patience_s: float = 0.0


class Encoder:
    """Encodes and scores with the loaded versions."""

    def __init__(
        self,
        versions: Versions,
        batcher: Batcher,
        admission: Admission,
        breaker: Breaker,
        limits: Limits,
        on_admitted: Callable[[int], None] = lambda _: None,
        *,
        pooled: bool = False,
    ) -> None:
        """`on_admitted` gets the tokens of a call once it is admitted, also if nobody waits for its end.

        `pooled`: the tokenizers' library has threads of its own, in which several texts wait for those of other calls.
        """
        self._pooled = pooled
        self._versions, self._batcher, self._breaker = versions, batcher, breaker
        self._on_admitted = on_admitted
        self._admission, self._limits = admission, limits
        self._tokenizers = ThreadPoolExecutor(TOKENIZERS, thread_name_prefix="tokenize")

    async def encode(self, call: EncodeCall) -> CallResult:
        """Encodes texts as queries or premises."""
        started = time.monotonic()
        check_texts(call.texts, self._limits, call.name)
        if call.role not in {"query", "premise"}:
            raise InvalidArgument.field("role", "is unspecified; use ROLE_QUERY or ROLE_PREMISE")
        if len(call.selection.routing_key.encode()) > MAX_KEY_BYTES:
            raise InvalidArgument.field("routing_key", f"is over {MAX_KEY_BYTES} bytes; send a hash of it")
        model = self._versions.resolve(call.role, call.selection)
        if call.is_unary:
            _check_answer(len(call.texts), model.dim, self._limits)
        prefix = model.description.prefixes[call.role]
        texts = [prefix + text for text in call.texts] if prefix else call.texts
        prepared = _PreparedCall(
            model,
            model.choose(call.precision, call.role),
            lambda: model.tokenization.texts(texts, truncate=call.truncate, name=call.name),
            len(texts),
            _estimate(map(len, texts), model),
            sum(map(len, texts)),
            call.caller,
            call.lane,
            STREAM_PATIENCE_S if call.patient else 0.0,
        )
        return await self._run(prepared, started, call.deadline_s)

    async def score(self, call: ScoreCall) -> CallResult:
        """Scores premises against a query with one cross-encoder.

        Raises FailedPrecondition for a label that names an ensemble, unless its first version is asked for.
        """
        started = time.monotonic()
        _check_query(call.query, self._limits)
        check_texts(call.premises, self._limits, "premises")
        model, ensemble = self._versions.resolve_cross_encoder(call.selection)
        if ensemble and not call.first_of_ensemble:
            raise FailedPrecondition(
                f"the label names an ensemble of {', '.join(ensemble)}; score by one of these versions, or rank by "
                "all of them with rerank in IndexService.Retrieve"
            )
        prepared = _PreparedCall(
            model,
            model.choose(call.precision, "query"),
            lambda: model.tokenization.pairs(call.query, call.premises, truncate=call.truncate),
            len(call.premises),
            _estimate((len(call.query) + len(premise) for premise in call.premises), model),
            sum(map(len, call.premises)) + len(call.query),
            call.caller,
        )
        return replace(await self._run(prepared, started, call.deadline_s), ensemble=ensemble)

    async def close(self) -> None:
        """Stops the worker and tokenizer threads."""
        await self._breaker.close()
        await self._batcher.close()
        self._tokenizers.shutdown(wait=False, cancel_futures=True)

    async def _run(self, prepared: _PreparedCall, started: float, deadline_s: float | None) -> CallResult:
        """Admits by the estimate, before any other work; tokenizes, admits by the count, and computes."""
        deadline = None if deadline_s is None else started + deadline_s
        with self._versions.held(prepared.model):
            asked = time.monotonic()
            async with self._admission.admitted(
                prepared.lane,
                prepared.estimate,
                deadline,
                prepared.patience_s,
                prepared.caller,
                type(prepared.model.runners[prepared.precision]),
            ) as hold:
                tokenizing = time.monotonic()
                tokenized = await self._tokenize(prepared)
                tokenized_at = time.monotonic()
                count = sum(len(tokens.ids) for tokens in tokenized.tokens)
                await hold.resize(count, deadline)
                self._on_admitted(count)
                counted_at = time.monotonic()
                computed = await self._compute(prepared, tokenized.tokens, deadline)
        return CallResult(
            rows=computed.rows,
            model_version=prepared.model.version,
            space_id=prepared.model.space_id,
            precision=prepared.precision,
            truncated=tokenized.truncated,
            tokens=count,
            total_s=time.monotonic() - started,
            tokenize_s=tokenized_at - tokenizing,
            queue_s=tokenizing - asked + counted_at - tokenized_at + computed.queue_s,
            compute_s=computed.compute_s,
        )

    async def _compute(self, prepared: _PreparedCall, texts: Sequence[Tokens], deadline: float | None) -> CallRows:
        """Computes the rows of texts in parts of what a call holds, and tells the breaker how it went."""
        model, precision, lane, caller = prepared.model, prepared.precision, prepared.lane, prepared.caller
        runner, parts = model.runners[precision], _parts(texts, self._admission.part(lane))
        try:
            done = [await self._batcher.encode(runner, part, lane, deadline, caller) for part in parts]
        except AeencError as error:
            self._breaker.failed(model, precision, error)
            raise
        self._breaker.passed(model, precision)
        if len(done) == 1:
            return done[0]
        rows = np.concatenate([part.rows for part in done])
        return CallRows(rows, sum(part.queue_s for part in done), sum(part.compute_s for part in done))

    async def _tokenize(self, prepared: _PreparedCall) -> TokenBatch:
        if prepared.characters <= INLINE_CHARACTERS and (prepared.count == 1 or not self._pooled):
            return prepared.tokenize()
        return await asyncio.get_running_loop().run_in_executor(self._tokenizers, prepared.tokenize)


def _parts(texts: Sequence[Tokens], limit: int) -> Iterator[Sequence[Tokens]]:
    """Cuts texts, in their order, into parts of at most `limit` tokens and at least one text."""
    start = held = 0
    for position, text in enumerate(texts):
        if held and held + len(text.ids) > limit:
            yield texts[start:position]
            start, held = position, 0
        held += len(text.ids)
    yield texts[start:]


def _check_answer(count: int, dim: int, limits: Limits) -> None:
    """Refuses texts whose vectors one answer cannot hold."""
    most = max(1, (limits.message_bytes - ENVELOPE_BYTES) // (4 * dim))
    if count > most:
        raise TooLarge.field(
            "texts",
            f"{count:,} vectors of {dim:,} values do not fit an answer of {limits.message_bytes:,} bytes; send at most "
            f"{most:,} texts a call, or use EncodeStream",
        )


def _check_query(query: str, limits: Limits) -> None:
    try:
        check_texts([query], limits)
    except InvalidArgument as error:  # it names a position, and there is one query
        raise type(error).field("query", error.violations[0].description) from None


def _estimate(characters: Iterable[int], model: Model) -> int:
    """Estimates the tokens of texts or pairs of so many characters; the model sees at most `max_tokens` of each."""
    most = model.description.max_tokens
    return sum(min(count // CHARACTERS_A_TOKEN + SPECIAL_TOKENS, most) for count in characters)
