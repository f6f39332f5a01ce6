"""The calls Encode and Score, from checked arguments to rows and timings.

    texts ──► resolve one version ──► likely room? ─► tokenizer ──► Admission (tokens) ──► Batcher ──► rows
                   Versions          refuses: RetryInfo  loop or     refuses or waits      worker threads
                                                        few threads

A call takes one version at its start and keeps it to the end, whatever is swapped meanwhile. Long texts are tokenized
in TOKENIZERS threads, which have an admission of their own, by characters. A call with more tokens than a part of its
lane is computed in such parts, one after the other, so that no more of it waits than it holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import AeencError, FailedPrecondition, InvalidArgument, TooLarge
from services.encoder.batching.admission import Admission, CostModel
from services.encoder.batching.batcher import Batcher
from services.encoder.batching.breaker import Breaker
from services.encoder.batching.queues import Call, Lane
from services.encoder.metrics import EncoderMetrics
from services.encoder.rollout.versions import Selection, Versions
from services.encoder.runtime.model import Model, TokenBatch
from services.encoder.runtime.runners import Tokens
from services.kit.limits import Limits, check_texts

INLINE_CHARACTERS = 1024  # tokenized on the event loop in under 0.5 ms; a thread and back costs 0.2 ms
CHARACTERS_A_TOKEN = 4  # of English text: as many may wait for a tokenizer as tokens for a worker
SPECIAL_TOKENS = 2  # of a text
STREAM_PATIENCE_S = 5.0
TOKENIZERS = 2  # threads
MAX_KEY_BYTES = 256
ENVELOPE_BYTES = 256  # of an answer beside its vectors, and more than they take


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """Texts, the model of a call, and how it is to compute. `deadline_s` counts from now; None means no limit.

    Calls of one `caller` share a part of the lane. One message answers a call that `is_unary`; where the lane has no
    room, it never waits.
    """

    texts: Sequence[str]
    selection: Selection = field(default_factory=Selection)
    truncate: bool = False
    precision: str = ""
    lane: Lane = "interactive"
    deadline_s: float | None = None
    caller: str = ""
    is_unary: bool = True

    @property
    def patience_s(self) -> float:
        """How long it waits for room: a batch of a stream is not refused at once."""
        return 0.0 if self.is_unary or self.lane != "bulk" else STREAM_PATIENCE_S


@dataclass(frozen=True, kw_only=True)
class EncodeCall(ModelCall):
    """Texts to encode."""

    role: str


@dataclass(frozen=True, kw_only=True)
class ScoreCall(ModelCall):
    """Premises to score against a query; `first_of_ensemble` by the first version of a label's several."""

    query: str
    first_of_ensemble: bool = False


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


class Encoder:
    """Encodes and scores with the loaded versions."""

    def __init__(
        self,
        versions: Versions,
        batcher: Batcher,
        admission: Admission,
        breaker: Breaker,
        limits: Limits,
        metrics: EncoderMetrics,
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
        self._tokenizer_cost, characters = CostModel(TOKENIZERS), limits.queued_tokens * CHARACTERS_A_TOKEN
        self._reading = Admission(characters, self._tokenizer_cost, metrics, unit="characters")

    async def encode(self, call: EncodeCall) -> CallResult:
        """Encodes texts as queries or premises."""
        started = time.monotonic()
        check_texts(call.texts, self._limits)
        if call.role not in {"query", "premise"}:
            raise InvalidArgument.field("role", "is unspecified; use ROLE_QUERY or ROLE_PREMISE")
        if len(call.selection.routing_key.encode()) > MAX_KEY_BYTES:
            raise InvalidArgument.field("routing_key", f"is over {MAX_KEY_BYTES} bytes; send a hash of it")
        model, default = self._versions.resolve(call.role, call.selection)
        room = max(1, (self._limits.message_bytes - ENVELOPE_BYTES) // (4 * model.dim))
        if call.is_unary and len(call.texts) > room:
            raise TooLarge.field(
                "texts",
                f"{len(call.texts):,} vectors of {model.dim:,} values do not fit an answer of "
                f"{self._limits.message_bytes:,} bytes; send at most {room:,} texts a call, or use EncodeStream",
            )
        prefix = model.description.prefixes[call.role]
        texts = [prefix + text for text in call.texts] if prefix else call.texts
        tokenize = partial(model.tokenization.texts, texts, truncate=call.truncate)
        call = replace(call, precision=model.choose(call.precision, default, call.role))
        return await self._run(call, model, tokenize, [len(text) for text in texts], started)

    async def score(self, call: ScoreCall) -> CallResult:
        """Scores premises against a query with one cross-encoder.

        Raises FailedPrecondition for a label that names an ensemble, unless its first version is asked for.
        """
        started = time.monotonic()
        _check_query(call.query, self._limits)
        check_texts(call.texts, self._limits, "premises")
        model, default, ensemble = self._versions.resolve_cross_encoder(call.selection)
        if ensemble and not call.first_of_ensemble:
            raise FailedPrecondition(
                f"the label names an ensemble of {', '.join(ensemble)}; score by one of these versions, or rank by "
                "all of them with rerank in IndexService.Retrieve"
            )
        tokenize = partial(model.tokenization.pairs, call.query, call.texts, truncate=call.truncate)
        chosen = replace(call, precision=model.choose(call.precision, default, "query"))
        characters = [len(call.query) + len(premise) for premise in call.texts]
        return replace(await self._run(chosen, model, tokenize, characters, started), ensemble=ensemble)

    async def close(self) -> None:
        """Stops the worker and tokenizer threads."""
        await self._breaker.close()
        await self._batcher.close()
        self._tokenizers.shutdown(wait=False, cancel_futures=True)

    async def _run(
        self, call: ModelCall, model: Model, tokenize: Callable[[], TokenBatch], characters: list[int], started: float
    ) -> CallResult:
        """Tokenizes what likely has room, admits its tokens, and computes; `characters` of each text or pair."""
        deadline = None if call.deadline_s is None else started + call.deadline_s
        kind, share = type(model.runners[call.precision]), (call.caller, len(call.texts) == 1)
        with model.held():
            if not call.patience_s:
                most = model.tokenization.max_tokens
                likely = sum(min(count // CHARACTERS_A_TOKEN + SPECIAL_TOKENS, most) for count in characters)
                self._admission.check_room(call.lane, likely, share, kind)
            begun = time.monotonic()
            tokenized = await self._tokenized(call, tokenize, characters, deadline)
            asked = time.monotonic()
            count = sum(len(tokens.ids) for tokens in tokenized.tokens)
            async with self._admission.admitted(call.lane, count, deadline, call.patience_s, share, kind) as alone:
                self._on_admitted(count)
                admitted = time.monotonic()
                done = await self._compute(call, model, tokenized.tokens, deadline, alone)
        return CallResult(
            rows=np.concatenate([part.rows for part in done]) if len(done) > 1 else done[0].rows,
            model_version=model.version,
            space_id=model.space_id,
            precision=call.precision,
            truncated=tokenized.truncated,
            tokens=count,
            total_s=time.monotonic() - started,
            tokenize_s=asked - begun,
            queue_s=admitted - asked + sum(part.queue_s for part in done),
            compute_s=sum(part.compute_s for part in done),
        )

    async def _tokenized(
        self, call: ModelCall, tokenize: Callable[[], TokenBatch], characters: list[int], deadline: float | None
    ) -> TokenBatch:
        count = sum(characters)
        if count <= INLINE_CHARACTERS and (len(characters) == 1 or not self._pooled):
            return tokenize()

        def timed() -> tuple[TokenBatch, float]:
            begun = time.monotonic()
            return tokenize(), time.monotonic() - begun

        async with self._reading.admitted(call.lane, count, deadline, call.patience_s, call.caller):
            done, took_s = await asyncio.get_running_loop().run_in_executor(self._tokenizers, timed)
        self._tokenizer_cost.observe(count, took_s)
        return done

    async def _compute(
        self, call: ModelCall, model: Model, texts: Sequence[Tokens], deadline: float | None, is_alone: bool
    ) -> list[Call]:
        """Computes the rows of texts in parts of what a call holds, and tells the breaker how it went."""
        runner, parts = model.runners[call.precision], _parts(texts, self._admission.part(call.lane))
        try:
            done = [
                await self._batcher.encode(runner, part, call.lane, deadline, call.caller, is_alone) for part in parts
            ]
        except AeencError as error:
            self._breaker.failed(model, call.precision, error)
            raise
        self._breaker.passed(model, call.precision)
        return done


def _parts(texts: Sequence[Tokens], limit: int) -> Iterator[Sequence[Tokens]]:
    """Cuts texts, in their order, into parts of at most `limit` tokens and at least one text."""
    start = held = 0
    for position, text in enumerate(texts):
        if held and held + len(text.ids) > limit:
            yield texts[start:position]
            start, held = position, 0
        held += len(text.ids)
    yield texts[start:]


def _check_query(query: str, limits: Limits) -> None:
    try:
        check_texts([query], limits)
    except InvalidArgument as error:  # it names a position, and there is one query
        raise type(error).field("query", error.violations[0].description) from None
