"""Moves labels: through a quality gate, with a way back, waiting until every live encoder has followed.

publish ──► QualityGate: a paired test against what serves ──► Registry.set_label ──► await_rollout
              │ worse: FailedPrecondition                        │ expected revision: else Aborted
              └ `force` skips it                                 └ a tandem: TandemPublisher instead

A request with an id is noted where its label moves. Its retry gets the first answer, other content AlreadyExists.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from aeenc import errors
from aeenc.values import Generation
from services.kit.logs import get
from services.kit.tracing import span
from services.store.formats import damage_is_data_loss, made_of
from services.store.registry import CheckpointRow, LabelRow, Registry, RolloutRow
from services.store.registry_rows import TOGETHER, versions_of
from services.store.requests import Request
from services.trainer.registry.checkpoints import CROSS_ENCODER, Checkpoints
from services.trainer.registry.operator_models import STABLE, OperatorModels
from services.trainer.registry.quality_gate import QualityGate, Verdict
from services.trainer.registry.rollout import Publication, followed
from services.trainer.registry.tandems import Tandem, TandemPublisher

log = get(__name__)

PREVIOUS = "previous"
CANARY = "canary"
MAX_WAIT_S = 60.0
ENSEMBLE = 8  # cross-encoders that rank together; the index takes no more in one call
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Move:
    """What a caller asks a label to do. Without a `label`, a publication is one of `stable`.

    `share` is of calls to `canary`; None: as it is. Without a `precision` a publication takes the best that every live
    encoder reports and the checkpoint has, other moves the label's last one.
    """

    version: str
    label: str
    expected_revision: int | None = None
    share: float | None = None
    precision: str = ""
    request_id: str = ""
    force: bool = False
    only_better: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a label that callers may not move, or a share that it cannot have."""
        _movable(self.label)
        if self.share is None:
            return
        if self.label != CANARY:
            raise errors.InvalidArgument.field("share", f"is set for label {self.label!r}; only {CANARY!r} has a share")
        if not 0.0 <= self.share <= 1.0:  # NaN fails this too
            raise errors.InvalidArgument.field("share", f"is {self.share:.8g}; give 0 to 1")

    def request(self, call: str) -> Request:
        """The request of a call, by which its retry is known."""
        content = asdict(self)
        return Request(content.pop("request_id"), call, content)


class Publisher:
    """The operations on labels. Callers move labels only through it.

    Moves are made in the order of their arrival: none follows a later one because its reads took longer, when its
    caller has given up and asked for something else. Compared publications and rollbacks take no turn, as they
    name the revision that they found. Tandems have turns of their own.
    """

    def __init__(
        self, registry: Registry, checkpoints: Checkpoints, models: OperatorModels, tandems: TandemPublisher
    ) -> None:
        self._registry, self._checkpoints, self._models = registry, checkpoints, models
        self._tandems, self._gate = tandems, QualityGate(registry, checkpoints)
        self._turn = asyncio.Lock()

    async def publish(self, move: Move, *, wait_s: float) -> Publication:
        """Points a label at a checkpoint unless it is measurably worse than the version that the label serves.

        For `stable` in a space that the corpus does not serve yet, the generation is activated, too (TandemPublisher).
        Raises FailedPrecondition for a worse checkpoint, with `only_better` for one that was not shown to be better;
        Aborted if the version compared with no longer serves.
        """
        request = move.request("Publish")
        async with self._turn if move.force else contextlib.nullcontext():
            record = await self._registry.requests.answer(request, dict) or {}
            tandem = await self._tandems.tandems.get(move.version)
            if "version" not in record and tandem is None:
                moved, gate = await self._move(move, request)
        if "version" in record:
            return await self._again(record, wait_s)
        if tandem is not None:
            if done := await self._tandems.begun(tandem, record.get("to", "")):
                return await self._noted(request, done, _read_answer(record)[1])
            if move.label == STABLE:
                before = await self._tandems.active(tandem.corpus)
                if before.space_id != tandem.space_id:
                    return await self._publish_tandem(move, request, tandem, before, wait_s)
            moved, gate = await self._move(move, request)
        return replace(await self._followed(moved, wait_s), gate=gate)

    async def _move(self, move: Move, request: Request) -> tuple[LabelRow, Verdict]:
        """Compares a version unless the move is forced, then points the label at it."""
        row = await self._named(move)
        with span("publish", links=[row.traceparent], label=move.label, version=move.version):
            compared, gate = await self._compare(move, row.space_id)
            precision = move.precision or await self._best_precision(move.version)
            expected = compared if move.expected_revision is None else move.expected_revision
            asked = replace(move, precision=precision, expected_revision=expected)
            moved = await self._set(row.space_id, asked, request, _answer(gate))
            at = {"revision": moved.revision, "precision": moved.precision}
            log.info("published", label=move.label, version=move.version, **at, gate=gate)
            return moved, gate

    async def _set(self, space_id: str, move: Move, request: Request, answer: str = "") -> LabelRow:
        return await self._registry.set_label(
            space_id,
            move.label,
            move.version,
            expected_revision=move.expected_revision,
            share=move.share,
            request=request,
            answer=answer,
            precision=move.precision,
        )

    async def _publish_tandem(
        self, move: Move, request: Request, tandem: Tandem, before: Generation, wait_s: float
    ) -> Publication:
        """Compares a tandem with what its corpus serves unless the move is forced, then activates it."""
        compared, gate = await self._compare(move, before.space_id)
        done = await self._tandems.publish(
            tandem,
            before,
            compared=compared,
            expected_revision=move.expected_revision,
            force=move.force,
            wait_s=min(wait_s, MAX_WAIT_S),
            request=request,
            answer=_answer(gate, tandem.generation),
            precision=move.precision or await self._best_precision(tandem.version),
        )
        return await self._noted(request, done, gate)

    async def _best_precision(self, version: str) -> str:
        """Returns the best precision in which every live encoder computes a version, or all versions of an ensemble."""
        return await self._registry.best_precision(await self._checkpoints.files(versions_of(version)))

    async def _compare(self, move: Move, space_id: str) -> tuple[int | None, Verdict]:
        """Returns the revision of the space's label that the version was compared with, None where it was not."""
        if move.force:
            return None, Verdict(not_compared="it was forced")
        if TOGETHER in move.version:
            revision, verdict = None, Verdict(not_compared="an ensemble has no validation of its own")
        else:
            revision, verdict = await self._gate.compare(move.version, space_id, move.label)
        if move.only_better:
            verdict.check_better(move.version)
        return revision, verdict

    async def set_label(self, move: Move) -> LabelRow:
        """Points a label at a version or an ensemble, without the gate."""
        request = move.request("SetLabel")
        async with self._turn:
            if before := await self._registry.requests.answer(request, LabelRow.of_hash):
                return before
            return await self._set((await self._named(move)).space_id, move, request)

    async def delete_label(self, label: str, space_id: str, request_id: str = "") -> None:
        """Removes a label; `stable` and `previous` stay in the trainer's own space and in those of corpora."""
        name = _checked(label)
        request = Request(request_id, "DeleteLabel", {"label": name, "space_id": space_id})
        async with self._turn:
            if await self._registry.requests.answer(request, bool):
                return
            place = space_id or await self._space_of(name)
            if name not in {STABLE, PREVIOUS}:
                await self._registry.delete_label(place, name, request=request)
                return
        if place == self._models.space_id:  # refused also while the index is away
            raise errors.FailedPrecondition(f"label {name!r} cannot be deleted; point 'stable' elsewhere instead")
        await self._tandems.close(place, name, request)

    async def rollback(
        self,
        label: str,
        space_id: str,
        *,
        corpus: str = "",
        expected_revision: int | None = None,
        wait_s: float = 0.0,
        request_id: str = "",
    ) -> Publication:
        """Points a label back at its previous version, or takes a corpus's tandem back; a request does it once.

        Raises FailedPrecondition where the label stands in several spaces and none is named, unless corpora serve one
        of them and no revision is expected: a revision belongs to one space.
        """
        if corpus:
            return await self._rollback_corpus(corpus, expected_revision, wait_s, request_id)
        name = _movable(label or STABLE)
        asked = {"label": name, "space_id": space_id, "expected_revision": expected_revision}
        request = Request(request_id, "Rollback", asked)
        if record := await self._registry.requests.answer(request, dict):
            return await self._again(record, wait_s)
        row = await self._label(name, space_id, has_revision=expected_revision is not None)
        if not row.previous:
            raise errors.FailedPrecondition(f"label {name!r} has no version before {row.version}; publish one")
        # Against the revision just read: of two concurrent rollbacks one wins and the other is Aborted.
        revision = row.revision if expected_revision is None else expected_revision
        moved = await self._registry.set_label(
            row.space_id, name, row.previous, expected_revision=revision, request=request
        )
        log.info("rolled back", label=name, version=moved.version, revision=moved.revision)
        return await self._followed(moved, wait_s)

    async def _rollback_corpus(
        self, corpus: str, expected_revision: int | None, wait_s: float, request_id: str
    ) -> Publication:
        """Activates what the corpus served before its tandem was published, encoders and generation together.

        Raises InvalidArgument for an expected revision, which is a label's.
        """
        if expected_revision is not None:
            raise errors.InvalidArgument.field(
                "expected_revision",
                f"is {expected_revision}, but the rollback of corpus {corpus!r} starts from its generation, not from a "
                "label's revision; leave it out, or roll back a label without `corpus`",
            )
        request = Request(request_id, "Rollback", {"corpus": corpus})
        record = await self._registry.requests.answer(request, dict)
        if record and "version" in record:
            return await self._again(record, wait_s)
        done = await self._tandems.rollback(corpus, wait_s=min(wait_s, MAX_WAIT_S), request=request)
        return await self._noted(request, done, Verdict())

    async def labels(self, space_id: str, page_size: int, page_token: str) -> tuple[list[LabelRow], str]:
        """Returns a page of the labels, or of those of one space, and the next token; `page_size` 0: all.

        A token names the last label of its page. Raises InvalidArgument for one from elsewhere.
        """
        last = tuple(page_token.split(" ")) if page_token else ()
        if len(last) not in {0, 2}:
            raise errors.InvalidArgument.field("page_token", "is malformed; send back the token of the page before")
        rows = await self._registry.labels(space_id or None, readable=True)
        found = [row for row in rows if (row.space_id, row.name) > last]
        page = found[: page_size or len(found)]
        return page, f"{page[-1].space_id} {page[-1].name}" if len(page) < len(found) else ""

    async def rollouts(self, label: str, space_id: str) -> tuple[LabelRow, list[RolloutRow]]:
        """Returns a label and how far each live encoder is."""
        row = await self._label(_checked(label or STABLE), space_id)
        return row, await self._registry.rollouts(row.space_id, row.name)

    async def _named(self, move: Move) -> CheckpointRow:
        """Returns the checkpoint that a label shall name, or the first of an ensemble, after checking all of it."""
        rows = [await self._checkpoints.brought(one) for one in versions_of(move.version)]
        if len(rows) > 1:
            _check_ensemble(rows, move.label)
        if move.share and rows[0].space_id == CROSS_ENCODER:
            raise errors.InvalidArgument.field(
                "share",
                f"is {move.share:g}, but {move.version} is a cross-encoder, and all pairs of a ranking must go to one; "
                f"leave it out, and name {move.version} in `rerank_versions` of the calls of Retrieve that shall try "
                "it",
            )
        return rows[0]

    async def _label(self, name: str, space_id: str, *, has_revision: bool = False) -> LabelRow:
        place = space_id or await self._space_of(name, has_revision=has_revision)
        row = await self._registry.label(place, name)
        if row is None:
            raise errors.NotFound(f"there is no label {name!r} in space {place}; list the labels")
        return row

    async def _space_of(self, name: str, *, has_revision: bool = False) -> str:
        """Finds the space of a label that is named without one: the only one, else the only one that corpora serve.

        That of cross-encoders is found where no other has the label. Raises FailedPrecondition where several remain, or
        where a revision is expected of one of several.
        """
        everywhere = sorted(row.space_id for row in await self._registry.labels(readable=True) if row.name == name)
        spaces = [one for one in everywhere if one != CROSS_ENCODER] or everywhere
        if len(spaces) > 1 and not has_revision:
            with contextlib.suppress(errors.AeencError):  # the index is away: nobody knows
                served = await self._tandems.served_spaces()
                spaces = [one for one in spaces if one in served] or spaces
        if len(spaces) > 1:
            raise errors.FailedPrecondition(
                f"label {name!r} stands in the spaces {', '.join(spaces)}; name the one that you mean by space_id "
                "(--space), or roll back a corpus",
                reason="SPACE_AMBIGUOUS",
            )
        return spaces[0] if spaces else self._models.space_id

    async def _noted(self, request: Request, done: Publication, gate: Verdict) -> Publication:
        """Notes the request of a generation's activation with its answer."""
        noted = {**done.label.to_hash(), "answer": _answer(gate, done.generation)}
        await self._registry.requests.record(request, noted)
        return replace(done, gate=gate)

    async def _again(self, record: dict[str, str], wait_s: float) -> Publication:
        """The answer that a request got before, with how far the encoders are by now."""
        row, (generation, gate) = LabelRow.of_hash(record), _read_answer(record)
        followed = await self._followed(row, wait_s)
        complete = followed.complete or bool(generation)
        return replace(followed, label=row, complete=complete, generation=generation, gate=gate)

    async def _followed(self, row: LabelRow, wait_s: float) -> Publication:
        return await followed(self._registry, row, min(wait_s, MAX_WAIT_S))


def _answer(gate: Verdict, generation: str = "") -> str:
    """Writes what the record of a request has beside the label's row."""
    return json.dumps({"gate": asdict(gate), **({"generation": generation} if generation else {})})


@damage_is_data_loss("the answer that a request got", "choose another id")
def _read_answer(record: dict[str, str]) -> tuple[str, Verdict]:
    """Reads what `_answer` wrote into the record of a request; nothing from an empty one. Raises DataLoss."""
    answer = json.loads(record["answer"] or "{}")
    return answer.get("generation", ""), made_of(Verdict, answer.get("gate", {}))


def _movable(label: str) -> str:
    """Checks that callers may move a label. Raises InvalidArgument."""
    if label == PREVIOUS:
        raise errors.InvalidArgument.field("label", "is 'previous', which follows 'stable' by itself")
    return _checked(label)


def _check_ensemble(rows: Sequence[CheckpointRow], label: str) -> None:
    """Raises InvalidArgument unless a label can name these checkpoints together."""
    versions = [row.version for row in rows]
    if len(set(versions)) < len(versions) or len(versions) > ENSEMBLE:
        raise errors.InvalidArgument.field(
            "version", f"names {', '.join(versions)}; give at most {ENSEMBLE} different versions"
        )
    if label == CANARY:
        raise errors.InvalidArgument.field("label", "is 'canary', whose share is of calls to one version; take another")
    for row in rows:
        if row.space_id != CROSS_ENCODER:
            raise errors.InvalidArgument.field(
                "version", f"names {row.version} among several; only cross-encoders rank together, name it alone"
            )


def _checked(label: str) -> str:
    if not _LABEL.fullmatch(label):
        raise errors.InvalidArgument.field("label", f"is {label[:80]!r}; give 1 to 64 letters, digits, '-', '_', '.'")
    return label
