"""The sampler's calls as one domain object: start, follow, stop and read runs. Transport is in servicer.py."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from pydantic import TypeAdapter

from aeenc import errors
from aeenc.trees import ROOT as ROOT_LABEL
from aeenc.trees import Step, record_from_tree
from aeenc.trees import Tree as EntailmentTree
from aeenc.values import NegativeFilter, RunConfig, RunProgress
from services.corpus.sameness import same_key
from services.kit.limits import Limits, check_count, check_k, check_texts
from services.kit.tracing import traceparent
from services.sampler.acs.algorithm import ROOT, Known, Node, PairSign, Result, Tree
from services.sampler.execution.holds import RunHolds
from services.sampler.execution.retrieval import Retrieval
from services.sampler.execution.runner import Runner
from services.sampler.oracles.gateway import Gateway
from services.sampler.records.node_store import Amended, NodeStore, explaining
from services.sampler.records.pair_log import PairLog, said
from services.sampler.records.run_store import RunStore
from services.sampler.records.runs import Hypothesis, Pair, Run
from services.store.formats import check_same
from services.store.life_cycles import LIVE, State
from services.store.requests import Request

Reason = Literal["rank", "margin", "wording", "cap"]

EXPORT_TREES, EXPORT_CHARS = 16, 128 * 1024  # read at once, by the records of those before
MAX_NAME = 1024  # characters of an imported pair's ids, names and reason
_ORIGINS = ("node_id", "model_version", "generation", "oracle", "annotator")
_START = TypeAdapter(tuple[RunConfig, list[Hypothesis]])
_NAMES = {"premise_id": "premise_id", "reason": "reason", **{name: f"provenance.{name}" for name in _ORIGINS}}


class Sampling:
    """Starts, stops and reads runs of one namespace. `runs` are their records, `runner` works on some of them.

    Raises the classes of `aeenc.errors`.
    """

    def __init__(
        self,
        runs: RunStore,
        nodes: NodeStore,
        log: PairLog,
        retrieval: Retrieval,
        holds: RunHolds,
        runner: Runner,
        oracles: Mapping[str, Gateway],
        limits: Limits,
        max_hypotheses: int,
    ) -> None:
        self.runs, self._nodes, self._log = runs, nodes, log
        self._retrieval, self._holds, self.runner = retrieval, holds, runner
        self._oracles, self.oracles = oracles, sorted(oracles)
        self.limits = limits
        self.max_hypotheses = max_hypotheses
        self._exporting = asyncio.Lock()  # a tree in work takes several times its record

    async def start(self, config: RunConfig, hypotheses: Sequence[Hypothesis]) -> Run:
        """Starts a run, resolving encoder version and generation now, or finds the one that its key started."""
        named = await asyncio.to_thread(self._checked, config, hypotheses)  # takes a moment with 100,000 hypotheses
        fingerprint = await asyncio.to_thread(_fingerprint, config, hypotheses)
        if config.idempotency_key and (started := await self.runs.cycles.started_by(config.idempotency_key)):
            return _same(await self.runs.get(started), config, fingerprint)
        version, generation = await self._retrieval.resolve(config, hypotheses[0].text)
        await self._retrieval.check_known(config, generation, named)
        run = Run(
            id=uuid.uuid4().hex[:16],
            config=config,
            state="PENDING",
            error="",
            model_version=version,
            generation=generation,
            progress=RunProgress(),
            created_at=datetime.now(UTC),
            ended_at=None,
            fingerprint=fingerprint,
            traceparent=traceparent(),
        )
        stored = await self.runs.get(await self.runs.create(run, hypotheses))
        if stored.id == run.id:
            await self._holds.hold_generation(stored)
        self.runner.wake()
        return _same(stored, config, fingerprint)

    def _checked(self, config: RunConfig, hypotheses: Sequence[Hypothesis]) -> list[str]:
        """The premises that hypotheses name (ids), of a start that is not refused."""
        if not config.corpus:
            raise errors.InvalidArgument.field("config.corpus", "is empty; name a corpus of the index")
        if config.oracle not in self.oracles:
            raise errors.InvalidArgument.field(
                "config.oracle",
                f"{config.oracle!r} is unknown; configured are: {', '.join(self.oracles) or 'none'}; "
                "name one of these, or add yours (`aeenc up --oracle NAME=HOST:PORT`, AEENC_SAMPLER_ORACLES)",
            )
        check_k(config.k, self.limits)
        check_texts([h.text for h in hypotheses], replace(self.limits, items=self.max_hypotheses), "hypotheses")
        if behind := [text for h in hypotheses for text in (h.question, h.answer) if text]:
            check_texts(behind, replace(self.limits, items=2 * self.max_hypotheses), "questions and answers")
        seen: set[str] = set()
        for position, hypothesis in enumerate(hypotheses):
            if hypothesis.only_ids:
                check_count(len(hypothesis.only_ids), self.limits, f"hypotheses[{position}].only_ids")
            if not hypothesis.id or hypothesis.id in seen:
                problem = f"{hypothesis.id!r} stands twice" if hypothesis.id else "is empty"
                raise errors.InvalidArgument.field(
                    f"hypotheses[{position}].id", f"{problem}; ids must be unique in the run"
                )
            seen.add(hypothesis.id)
        return list(dict.fromkeys(one for h in hypotheses for one in (h.before_id, *h.only_ids) if one))

    async def cancel(self, run_id: str, request_id: str) -> Run:
        """Stops a run. Raises FailedPrecondition for one that has ended, except to a retry of the same request."""
        request = Request(request_id, "CancelRun", {"run_id": run_id})
        answer = await self.runs.cycles.transition(run_id, LIVE, "CANCELLED", request=request)
        run = await self.runs.get(run_id)
        if answer != "OK":
            raise errors.FailedPrecondition(f"run {run_id} has ended ({answer}); there is nothing to cancel")
        if run.ended:  # else this is a retry, and the run was resumed meanwhile
            await self.runner.drop(run_id)
            await self._holds.drop(run.id)
        return run

    async def resume(self, run_id: str, request_id: str) -> Run:
        """Continues a run. One that is live stays as it is: if its sampler is gone, another takes it over.

        A run that has succeeded goes on where people have accepted more since: its trees grow below that.

        A retry of a request that has resumed the run before finds it as it is now, even if it has ended again.
        """
        request = Request(request_id, "ResumeRun", {"run_id": run_id})
        oracle = self._oracles.get((await self.runs.get(run_id)).config.oracle)
        grows = oracle is not None and bool(await oracle.amended(run_id))
        resumable: tuple[State, ...] = ("FAILED", "CANCELLED", "SUCCEEDED") if grows else ("FAILED", "CANCELLED")
        answer = await self.runs.cycles.transition(run_id, resumable, "PENDING", request=request)
        if answer == "SUCCEEDED":
            raise errors.FailedPrecondition(f"run {run_id} has succeeded; start a new run")
        run = await self.runs.get(run_id)
        if not run.ended:  # else this is a retry
            await self._holds.hold_generation(run)
        self.runner.wake()
        return run

    async def pairs(self, run_id: str, limit: int, after: int, sign: PairSign | None) -> tuple[list[Pair], int]:
        """At most `limit` pairs of a run after a position of its log, and the position to go on from (0: the end)."""
        run = await self.runs.get(run_id)
        return await self._log.page(run_id, after, limit, sign, partial(self._filtered, run))

    async def _filtered(self, run: Run, pairs: list[Pair]) -> list[Pair]:
        """Pairs as the run's rules have them by what is known of their queries now: left out, skipped, or as they are.

        An amended refusal beyond the cap is skipped, not left out: it says that an earlier pair holds no longer.
        """
        if not run.config.negative_filter and not run.config.max_negatives_per_query:
            return pairs
        queries = list({pair.query for pair in pairs if pair.sign == "NEGATIVE"})
        known = await self._nodes.answers(run.id, queries)
        reasons = {query: left_out(query, one, run.config) for query, one in zip(queries, known, strict=True)}
        found = []
        for pair in pairs:
            reason = reasons[pair.query].get(pair.premise_id) if pair.sign == "NEGATIVE" else None
            if not reason:
                found.append(pair)
            elif reason != "cap" or pair.amended:
                found.append(replace(pair, sign="SKIPPED", reason=reason))
        return found

    async def import_pairs(self, corpus: str, pairs: Sequence[Pair], run_id: str, request_id: str) -> tuple[str, int]:
        """Adds pairs judged elsewhere to a run of their own, or to that of an earlier import.

        Nobody looks the corpus or its premises up: an import needs no index.
        """
        if not corpus:
            raise errors.InvalidArgument.field("corpus", "is empty; name the corpus of the pairs' premise ids")
        await asyncio.to_thread(_check_pairs, pairs, self.limits)
        if run_id and (not (run := await self.runs.get(run_id)).imported or run.config.corpus != corpus):
            raise errors.InvalidArgument.field(
                "run_id", f"{run_id} is not an import into corpus {corpus!r}; leave it out to start one"
            )
        request = Request(request_id, "ImportPairs", {"corpus": corpus, "pairs": await asyncio.to_thread(said, pairs)})
        found = await self._log.imported(request) or await self._import(corpus, pairs, run_id, request)
        if run_id:  # a repeated call may name the run that the first one began
            check_same(request_id, {"run_id": found}, {"run_id": run_id})
        return found, len(pairs)

    async def _import(self, corpus: str, pairs: Sequence[Pair], run_id: str, request: Request) -> str:
        """Adds pairs to a run, or stores a new one with them in one step: nobody ever sees one without the other."""
        new_id, at = run_id or uuid.uuid4().hex[:16], datetime.now(UTC)
        add = partial(self._log.add, new_id, [replace(pair, run_id=new_id) for pair in pairs], request)
        if run_id:
            is_new = await add()
        else:
            config = RunConfig(corpus=corpus, idempotency_key=f"import {request.id}" if request.id else "")
            run = Run(new_id, config, "SUCCEEDED", "", "", "", RunProgress(), at, at, imported=True)
            is_new = await self.runs.create(run, [], add) == new_id
        return new_id if is_new else await self._log.imported(request)  # another call was faster

    async def export_trees(self, run_id: str) -> AsyncIterator[tuple[str, str]]:
        """Hypothesis id and EntailmentBank record of each tree of a run in which something was accepted."""
        run = await self.runs.get(run_id)
        start, count = 0, 1
        while start < run.progress.trees:
            async with self._exporting:
                records = await self._records(run_id, range(start, min(start + count, run.progress.trees)))
            for one in records:
                yield one
            start += count
            largest = max((len(record) for _, record in records), default=1)
            count = min(2 * count, EXPORT_TREES, max(1, EXPORT_CHARS // largest))

    async def _records(self, run_id: str, indexes: range) -> list[tuple[str, str]]:
        trees = await self._nodes.trees(run_id, indexes)
        queries = list({node.text for tree in trees for node in tree.nodes})
        amended = dict(zip(queries, await self._nodes.amended(run_id, queries), strict=True))
        records = []
        for tree in trees:
            if record := _record_json(tree, amended):
                records.append((tree.hypothesis_id, record))
            await asyncio.sleep(0)
        return records


def _check_pairs(pairs: Sequence[Pair], limits: Limits) -> None:
    """Refuses what is missing, too long or not finite. Raises InvalidArgument or TooLarge, naming pair and value."""
    for position, pair in enumerate(pairs):
        place = f"pairs[{position}]"
        for name in ("query", "premise"):
            text = getattr(pair, name)
            if not text.strip():
                raise errors.InvalidArgument.field(f"{place}.{name}", "is missing; a pair needs it")
            if len(text) * 4 > limits.text_bytes and (size_bytes := len(text.encode())) > limits.text_bytes:
                problem = f"{size_bytes:,} bytes are over the limit of {limits.text_bytes:,}; shorten the text"
                raise errors.TooLarge.field(f"{place}.{name}", problem)
        for name, field in _NAMES.items():
            if (length := len(getattr(pair, name))) > MAX_NAME:
                raise errors.InvalidArgument.field(
                    f"{place}.{field}", f"has {length:,} characters; at most {MAX_NAME:,}"
                )
        for name in ("score", "grade"):
            if not math.isfinite(number := getattr(pair, name)):
                raise errors.InvalidArgument.field(f"{place}.provenance.{name}", f"is {number}; give a finite number")


def _fingerprint(config: RunConfig, hypotheses: Sequence[Hypothesis]) -> str:
    """Tells two StartRun calls under one idempotency key apart. A later release may have further options."""
    return hashlib.sha256(_START.dump_json((config, [*hypotheses]), exclude_defaults=True)).hexdigest()


def _same(run: Run, config: RunConfig, fingerprint: str) -> Run:
    if run.fingerprint != fingerprint:
        now, then = asdict(config), asdict(run.config)
        differing = ", ".join(sorted(name for name in now if now[name] != then[name]))
        raise errors.AlreadyExists(
            f"idempotency key {run.config.idempotency_key!r} started run {run.id} with other "
            f"{differing or 'hypotheses'}; choose another key"
        )
    return run


def highest_kept(by: NegativeFilter, best: float | None) -> float:
    """The highest score that is kept when the best accepted premise scores `best`; None: none is accepted."""
    if best is None:
        return math.inf
    margins = (by.absolute_margin, None if by.relative_margin is None else by.relative_margin * abs(best))
    return best - max((margin for margin in margins if margin is not None), default=-math.inf)


def left_out(query: str, known: Known, config: RunConfig) -> dict[str, Reason]:
    """Why refused premises of a query are no negatives by the configuration of a run, by id.

    An oracle also refuses what it does not recognise: a premise that scores like an accepted one, or says the same in
    other words, may explain the query after all. The margins are those of NV-Retriever (Moreira et al. 2024,
    arXiv:2407.15831), measured from the best-scored accepted premise of the query; a query without one has no margin.
    Scores are compared only where the same query vector gave them: neither those of a conditioned node's rounds nor
    those of two encoder versions. So the cap goes by ranks: of those that the filter leaves, the
    `max_negatives_per_query` best-ranked stay (0: all), of equal ranks those of the vector that came first. A premise
    without a rank was added by somebody: no rank or score leaves it out.
    """
    by, most = config.negative_filter, config.max_negatives_per_query
    accepted = [pair for pair in known.pairs.values() if pair.explains]
    best: dict[str, float] = {}
    for pair in accepted:
        if pair.premise.rank:
            best[pair.vector] = max(pair.premise.score, best.get(pair.vector, pair.premise.score))
    texts = (query, *(pair.premise.text for pair in accepted)) if by and by.rewordings else ()
    same = set(map(same_key, texts))
    vectors = list(dict.fromkeys(pair.vector for pair in known.pairs.values()))
    refused = sorted(
        (pair for pair in known.pairs.values() if pair.explains is False),
        key=lambda pair: (not pair.premise.rank, pair.premise.rank, vectors.index(pair.vector), pair.premise.id),
    )
    found: dict[str, Reason] = {}
    kept = 0
    for pair in refused:
        one = pair.premise
        if by and one.rank and (one.rank < by.min_rank or 0 < by.max_rank < one.rank):
            found[one.id] = "rank"
        elif same and same_key(one.text) in same:
            found[one.id] = "wording"
        elif by and one.rank and one.score > highest_kept(by, best.get(pair.vector)):
            found[one.id] = "margin"
        elif 0 < most <= kept:
            found[one.id] = "cap"
        else:
            kept += 1
    return found


def _record_json(tree: Tree, amended: Mapping[str, Amended]) -> str | None:
    """One line of an EntailmentBank file, or None when nothing explains the hypothesis. `amended` is by query.

    What a run accepted may form a graph. The tree keeps each expanded premise under the node that first reached it;
    elsewhere the premise is a plain sentence. What an amendment took back is left out with everything below it; what
    one accepted later is a plain sentence. An intermediate that people wrote stands where it is explained, with its
    authors; without an explanation it is left out, for it is no premise.
    """
    accepted = _reachable(tree, amended)
    children: dict[int, dict[str, Node]] = defaultdict(dict)
    for node in tree.nodes:
        children[node.parent][node.text] = node
    sentences: dict[str, str] = {}
    steps: list[Step] = []
    explained: set[int] = set()
    authors: dict[str, str] = {}
    for node in reversed(tree.nodes):  # children come after their parents: deepest steps first, the root's last
        labels = []
        written = {one.text for one in tree.results.get(node.ordinal, Result()).accepted if one.author}
        for text in accepted.get(node.ordinal, ()):
            child = children[node.ordinal].get(text)
            if child is not None and child.ordinal in explained:
                labels.append(_label(child))
            elif text not in written:
                labels.append(sentences.setdefault(text, f"sent{len(sentences) + 1}"))
        if labels:
            explained.add(node.ordinal)
            if node.author:
                authors[_label(node)] = node.author
            steps.append(Step(tuple(labels), _label(node), node.text))
    if ROOT not in explained:
        return None
    built = EntailmentTree(
        tree.hypothesis_id,
        tree.nodes[ROOT].text,
        {label: text for text, label in sentences.items()},
        tuple(steps),
        tree.question,
        tree.answer,
    )
    record = record_from_tree(built)
    return json.dumps({**record, "authors": authors} if authors else record)


def _reachable(tree: Tree, amended: Mapping[str, Amended]) -> dict[int, list[str]]:
    """The texts that explain each judged node that still hangs on the root."""
    accepted: dict[int, list[str]] = {}
    for node in tree.nodes:  # parents come first
        hangs = node.ordinal == ROOT or node.text in accepted.get(node.parent, ())
        if hangs and node.ordinal in tree.results:
            accepted[node.ordinal] = [one.text for one in explaining(tree, node, amended.get(node.text, {}))]
    return accepted


def _label(node: Node) -> str:
    return ROOT_LABEL if node.ordinal == ROOT else f"int{node.ordinal}"
