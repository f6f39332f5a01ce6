"""Moves labels: through a quality gate, with a way back, waiting until every live encoder has followed.

publish ──► gate: paired test against the serving version ──► Registry.set_label ──► await_rollout
              │ worse, p < SIGNIFICANCE: FailedPrecondition        │ expected revision: else Aborted
              └ `force` skips it                                   └ a tandem: TandemPublisher instead
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aeenc import errors
from aeenc.evaluation import paired_randomisation_test
from services.kit.logs import get
from services.store.registry import LabelRow, Registry, RolloutRow
from services.trainer.registry.checkpoints import Checkpoints
from services.trainer.registry.operator_models import STABLE, PretrainedSpace
from services.trainer.registry.tandem_publishing import TandemPublisher

log = get(__name__)

PREVIOUS = "previous"
CANARY = "canary"
MAX_WAIT_S = 60.0
SIGNIFICANCE = 0.05
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Publication:
    """A label after a move, and how far the live encoders are. Never complete if another move overtook it.

    `generation` is the one that was activated with it; empty for none.
    """

    label: LabelRow
    rollouts: Sequence[RolloutRow]
    complete: bool
    generation: str = ""


class Publisher:
    """The operations on labels. Callers move labels only through it."""

    def __init__(
        self, registry: Registry, checkpoints: Checkpoints, space: PretrainedSpace, tandems: TandemPublisher
    ) -> None:
        self._registry, self._checkpoints, self._space = registry, checkpoints, space
        self._tandems = tandems

    async def publish(
        self,
        version: str,
        label: str,
        *,
        expected_revision: int | None,
        force: bool,
        wait_s: float,
        share: float | None = None,
    ) -> Publication:
        """Points a label at a checkpoint unless it is measurably worse than the version that the label serves.

        For `stable` in a space that the corpus does not serve yet, the generation is activated, too (TandemPublisher).
        Raises FailedPrecondition for a worse checkpoint, Aborted if the version compared with no longer serves.
        """
        name = _movable(label or STABLE)
        _check_share(name, share)
        row = await self._checkpoints.get(version)
        if name == STABLE and (tandem := await self._tandems.tandem(version)) is not None:
            before = await self._tandems.active(tandem.corpus)
            compared = None if force else await self._compare(version, before.space_id, name)
            done = await self._tandems.publish(
                tandem,
                before,
                compared=compared,
                expected_revision=expected_revision,
                force=force,
                wait_s=min(wait_s, MAX_WAIT_S),
            )
            return Publication(done.label, done.rollouts, complete=True, generation=done.generation)
        if not force:
            compared = await self._compare(version, row.space_id, name)
            expected_revision = compared if expected_revision is None else expected_revision
        moved = await self._registry.set_label(
            row.space_id, name, version, expected_revision=expected_revision, share=share
        )
        log.info("published", label=name, version=version, revision=moved.revision, share=moved.share)
        return await self._followed(moved, wait_s)

    async def set_label(
        self, label: str, version: str, expected_revision: int | None, share: float | None = None
    ) -> LabelRow:
        """Points a label at a version, without the gate."""
        name = _movable(label)
        _check_share(name, share)
        row = await self._checkpoints.get(version)
        return await self._registry.set_label(
            row.space_id, name, version, expected_revision=expected_revision, share=share
        )

    async def delete_label(self, label: str, space_id: str) -> None:
        """Removes a label; `stable` and `previous` stay in the trainer's own space and in those of corpora."""
        name = _checked(label)
        place = space_id or await self._space_of(name)
        if name not in {STABLE, PREVIOUS}:
            await self._registry.delete_label(place, name)
        elif place == self._space.space_id:  # refused also while the index is away
            raise errors.FailedPrecondition(f"label {name!r} cannot be deleted; point 'stable' elsewhere instead")
        else:
            await self._tandems.close(place, name)

    async def rollback(
        self, label: str, space_id: str, *, expected_revision: int | None, wait_s: float, request_id: str = ""
    ) -> Publication:
        """Points a label back at its previous version. A repeated `request_id` goes back once."""
        name = _movable(label or STABLE)
        row = await self._label(name, space_id)
        if (
            request_id
            and await self._registry.claim_request(f"{row.space_id} {name} {request_id}", row.revision) < row.revision
        ):
            return await self._followed(row, wait_s)
        if not row.previous:
            raise errors.FailedPrecondition(f"label {name!r} has no version before {row.version}; publish one")
        # Against the revision just read: of two concurrent rollbacks one wins and the other is Aborted.
        revision = row.revision if expected_revision is None else expected_revision
        moved = await self._registry.set_label(row.space_id, name, row.previous, expected_revision=revision)
        log.info("rolled back", label=name, version=moved.version, revision=moved.revision)
        return await self._followed(moved, wait_s)

    async def rollback_corpus(self, corpus: str, *, wait_s: float, request_id: str) -> Publication:
        """Activates what the corpus served before its tandem was published, encoders and generation together."""
        done = await self._tandems.rollback(corpus, wait_s=min(wait_s, MAX_WAIT_S), request_id=request_id)
        return Publication(done.label, done.rollouts, complete=True, generation=done.generation)

    async def labels(self, space_id: str) -> list[LabelRow]:
        """Lists all labels, or those of one space."""
        return await self._registry.labels(space_id or None)

    async def rollouts(self, label: str, space_id: str) -> tuple[LabelRow, list[RolloutRow]]:
        """Returns a label and how far each live encoder is."""
        row = await self._label(_checked(label or STABLE), space_id)
        return row, await self._registry.rollouts(row.space_id, row.name)

    async def _label(self, name: str, space_id: str) -> LabelRow:
        row = await self._registry.label(self._of(space_id), name)
        if row is None:
            raise errors.NotFound(f"there is no label {name!r} in space {self._of(space_id)}; list the labels")
        return row

    async def _space_of(self, name: str) -> str:
        """Finds the only space with a label, otherwise the trainer's own."""
        spaces = [row.space_id for row in await self._registry.labels() if row.name == name]
        return spaces[0] if len(spaces) == 1 else self._space.space_id

    def _of(self, space_id: str) -> str:
        return space_id or self._space.space_id

    async def _followed(self, row: LabelRow, wait_s: float) -> Publication:
        if not wait_s:
            return Publication(row, (), complete=False)
        rollouts = await self._registry.await_rollout(row, min(wait_s, MAX_WAIT_S))
        now = await self._registry.label(row.space_id, row.name)
        overtaken = now is None or now.revision != row.revision
        followed = bool(rollouts) and all(rollout.ok and rollout.revision >= row.revision for rollout in rollouts)
        return Publication(now or row, rollouts, complete=followed and not overtaken)

    async def _compare(self, version: str, space_id: str, name: str) -> int:
        """Compares a version with the one that a label serves. Returns the revision compared with; 0 for no label."""
        serving = await self._registry.label(space_id, name)
        if serving is None:
            return 0
        if serving.version != version:
            await self._gate(version, serving.version)
        return serving.revision

    async def _gate(self, version: str, serving: str) -> None:
        """Raises FailedPrecondition if a paired test on the same queries finds the candidate worse.

        Without metrics on the same queries of both versions there is nothing to compare, and the candidate passes.
        """
        candidate = await self._checkpoints.metrics(version)
        if candidate is None:
            return
        theirs = _precisions_of(serving, await self._checkpoints.metrics(serving), candidate)
        if theirs is None:
            return
        ours = np.array(candidate["after"]["average_precisions"])
        if ours.mean() >= theirs.mean():
            return
        p_value = await asyncio.to_thread(paired_randomisation_test, ours, theirs)
        if p_value < SIGNIFICANCE:
            raise errors.FailedPrecondition(
                f"checkpoint {version} has validation MAP {ours.mean():.4f}, the serving {serving} {theirs.mean():.4f} "
                f"on the same {len(ours)} queries (paired randomisation test, p = {p_value:.3f}); publish with force "
                "if you want it nevertheless",
                reason="QUALITY_GATE",
            )


def _precisions_of(serving: str, metrics: dict[str, Any] | None, candidate: dict[str, Any]) -> Any:
    """Finds the serving version's average precisions on the candidate's queries; None if never measured."""
    same = ("generation", "queries_sha256", "reranks")  # a cross-encoder's quality depends on the rankings
    if metrics is not None and all(metrics.get(name) == candidate.get(name) for name in same):
        return np.array(metrics["after"]["average_precisions"])
    if candidate["base_version"] == serving:
        return np.array(candidate["before"]["average_precisions"])
    return None


def _movable(label: str) -> str:
    """Checks that callers may move a label. Raises InvalidArgument."""
    if label == PREVIOUS:
        raise errors.InvalidArgument.field("label", "is 'previous', which follows 'stable' by itself")
    return _checked(label)


def _check_share(label: str, share: float | None) -> None:
    """Raises InvalidArgument for a share outside 0 to 1, or on a label other than `canary`."""
    if share is None:
        return
    if label != CANARY:
        raise errors.InvalidArgument.field("share", f"is set for label {label!r}; only {CANARY!r} has a share")
    if not 0.0 <= share <= 1.0:  # NaN fails this too
        raise errors.InvalidArgument.field("share", f"is {share:g}; give 0 to 1")


def _checked(label: str) -> str:
    if not _LABEL.fullmatch(label):
        raise errors.InvalidArgument.field("label", f"is {label[:80]!r}; give 1 to 64 letters, digits, '-', '_', '.'")
    return label
