"""Retrieves premises with the run's own encoder version and generation: the nearest of many queries, or by id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from aeenc import errors
from aeenc.calls.retrieval import Hit
from aeenc.index import IndexClient
from aeenc.oracle import Candidate
from aeenc.trees import EVERYTHING, Accessible
from aeenc.values import ModelSelector, Premise, RunConfig
from services.kit.logs import get
from services.sampler.acs.algorithm import ADDED, reach
from services.sampler.records.runs import Run

log = get(__name__)
T = TypeVar("T")

CALL_TEXTS = 256
CALL_HITS = 20_000  # keeps an answer below 4 MiB with premises of usual length
CALL_BYTES = 1024 * 1024  # a server may accept no more than gRPC's default of 4 MiB
MAX_ACCEPTED = 1024  # premises that one query may be conditioned on
PAUSE_S = 0.5
# The oracle sees the whole text; only the encoder sees less of it.
EXACTLY: dict[str, Any] = {"precision": "float32", "truncate": True}
# The version is loaded again once the encoders have seen the run's label.
_PASSING = (errors.Unavailable, errors.Overloaded, errors.DeadlineExceeded, errors.VersionNotLoaded)

# a text, the ids of the premises accepted for it, which it is conditioned on, and what is accessible to it
Query = tuple[str, tuple[str, ...], Accessible]


class Retrieval:
    """Calls Retrieve. `patience_s` is how long a run waits for an index or encoder that is away."""

    def __init__(self, index: IndexClient, patience_s: float) -> None:
        self._index = index
        self._patience_s = patience_s

    async def resolve(self, config: RunConfig, text: str, generation: str = "") -> tuple[str, str]:
        """The encoder version and the generation that a run of this configuration uses from now on.

        With a `generation`, the version is the one that the label names in its space.
        """
        # The label is named, so that a run is not part of a canary's share.
        model = config.model or ModelSelector()
        label = None if model.version else model.label or "stable"
        found = await self._index.retrieve(
            config.corpus, [text], k=1, label=label, version=model.version or None, generation=generation, **EXACTLY
        )
        return found.model_version, found.generation

    async def nearest(self, run: Run, queries: Sequence[Query]) -> list[list[Candidate]]:
        """The nearest premises of each query, as many as the run's rules look up, best first.

        The run's version retrieves them. The query itself and those accepted are not among them, nor what is not
        accessible. Raises what Retrieve raises.
        """
        found: list[list[Candidate]] = []
        most = max(1, min(CALL_TEXTS, CALL_HITS // reach(run.config)))
        for _, alike in groupby(queries, lambda query: query[2]):  # a call has one filter
            for part in in_calls(alike, lambda query: sum(len(one.encode()) for one in (query[0], *query[1])), most):
                found += [
                    [Candidate(hit.id, hit.text, rank, hit.score) for rank, hit in enumerate(hits, start=1)]
                    for hits in await self._retrieve(run, part)
                ]
        return found

    async def check_known(self, config: RunConfig, generation: str, ids: Sequence[str]) -> None:
        """Raises NotFound for a premise that the generation lacks."""
        for start in range(0, len(ids), CALL_TEXTS):
            await self._index.get_premises(config.corpus, ids[start : start + CALL_TEXTS], generation=generation)

    async def premises(self, run: Run, ids: Sequence[str], accessible: Accessible = EVERYTHING) -> list[Candidate]:
        """Premises that people add to the run's trees, by id or alias, as candidates without rank.

        Raises NotFound for one that the run's generation lacks, InvalidArgument for one outside its splits or that is
        not accessible, and what GetPremises and Retrieve raise.
        """
        found = await self._index.get_premises(run.config.corpus, ids, generation=run.generation)
        may = await self._accessible(run, found, accessible)
        allowed = splits_of(run.config)
        for position, premise in enumerate(found):
            if premise.id not in may:
                raise errors.InvalidArgument.field(
                    f"additions[{position}].premise_id",
                    f"{premise.id!r} is not accessible here: it does not stand before what it would explain, or is not "
                    "in the hypothesis's list",
                )
            if allowed and premise.splits and not {*allowed} & {*premise.splits}:
                raise errors.InvalidArgument.field(
                    f"additions[{position}].premise_id",
                    f"{premise.id!r} belongs to {', '.join(premise.splits)}, and run {run.id} samples "
                    f"{', '.join(allowed)}; training on it would leak",
                )
        return [Candidate(premise.id, premise.text, ADDED, 0.0) for premise in found]

    async def barred(self, run: Run, ids: Sequence[str], accessible: Accessible) -> frozenset[str]:
        """Those premises that are not accessible, of ids that are not empty. Waits for the index as a run does."""
        if accessible == EVERYTHING or not (ids := [one for one in ids if one]):
            return frozenset()
        look_up = partial(self._index.get_premises, run.config.corpus, ids, generation=run.generation)
        found = await self._patiently(run, look_up)
        return frozenset(ids) - await self._patiently(run, partial(self._accessible, run, found, accessible))

    async def _accessible(self, run: Run, premises: Sequence[Premise], accessible: Accessible) -> set[str]:
        """The ids of those premises that are accessible; the index knows their order."""
        only = {*(accessible.only_ids or ())}
        ids = {one.id for one in premises if not only or only & {one.id, *one.aliases}}
        if not accessible.before_id or not ids:
            return ids
        found = await self._index.retrieve(
            run.config.corpus,
            [premises[0].text],
            k=len(ids),
            only_ids=sorted(ids),
            before_id=accessible.before_id,
            drop_self=False,
            version=run.version,
            generation=run.generation,
            **EXACTLY,
        )
        return {hit.id for hit in found[0]}

    async def proposed(self, run: Run, ids: Sequence[str], accessible: Accessible = EVERYTHING) -> dict[str, Candidate]:
        """Those premises that may be added to the run's trees, by the id or alias asked. What keeps others is logged.

        Waits for the index as a run does. Raises what GetPremises raises.
        """
        found: dict[str, Candidate] = {}
        for premise_id in ids:
            try:
                [found[premise_id]] = await self._patiently(run, partial(self.premises, run, [premise_id], accessible))
            except (errors.NotFound, errors.InvalidArgument) as error:
                log.warning("an oracle adds a premise that may not be added", run=run.id, reason=error.message)
        return found

    async def _retrieve(self, run: Run, queries: Sequence[Query]) -> list[list[Hit]]:
        conditioned = any(accepted for _, accepted, _ in queries)
        call = partial(
            self._index.retrieve,
            run.config.corpus,
            [text for text, _, _ in queries],
            k=reach(run.config),
            accepted=[accepted[:MAX_ACCEPTED] for _, accepted, _ in queries] if conditioned else (),
            version=run.version,
            splits=splits_of(run.config) or None,
            generation=run.generation,
            **vars(queries[0][2]),
            **EXACTLY,
        )
        try:
            return (await self._patiently(run, call)).results
        except errors.TooLarge:  # premises are long
            if len(queries) == 1:
                raise
            half = len(queries) // 2
            return [*await self._retrieve(run, queries[:half]), *await self._retrieve(run, queries[half:])]

    async def _patiently(self, run: Run, call: Callable[[], Awaitable[T]]) -> T:
        give_up_at = time.monotonic() + self._patience_s
        while True:
            try:
                return await call()
            except _PASSING as error:
                if time.monotonic() > give_up_at:
                    raise
                log.warning("run waits for the index", run=run.id, reason=error.message)
                await asyncio.sleep(PAUSE_S)


def splits_of(config: RunConfig) -> tuple[str, ...]:
    """The splits whose premises may be put before the oracle; empty: all."""
    return ("facts", config.split) if config.split else ()


def in_calls(asked: Iterable[T], size_bytes: Callable[[T], int], most: int) -> list[list[T]]:
    """What is asked in calls of about CALL_BYTES, and of at most so many."""
    calls: list[list[T]] = []
    room = 0
    for one in asked:
        size = size_bytes(one)
        if not calls or len(calls[-1]) >= most or size > room:
            calls.append([])
            room = CALL_BYTES
        calls[-1].append(one)
        room -= size
    return calls
