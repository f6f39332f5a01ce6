"""Which spaces are served: the default one, and every other in which a label stands; each with its premise encoder.

A space is the matter of one premise encoder. It is served as a whole or not at all: queries of a space whose premise
encoder cannot be loaded are refused, since their vectors would fit nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from datetime import UTC, datetime

from aeenc import errors
from services.encoder.candidates import Candidates
from services.encoder.loading import check_place
from services.encoder.local_state import SavedSpace
from services.encoder.model import CROSS_ENCODERS, Model
from services.encoder.swaps import Swaps
from services.encoder.versions import STABLE, LabelHere, Versions
from services.kit.logs import get
from services.store.registry import LabelRow, Registry

log = get(__name__)

PREMISES = "(premises)"  # in the place of a label: the space's own encoder


class Spaces:
    """Opens and closes the spaces of one encoder."""

    def __init__(self, registry: Registry, candidates: Candidates, versions: Versions, swaps: Swaps) -> None:
        self._registry, self._candidates = registry, candidates
        self._versions, self._swaps = versions, swaps
        self._failed: dict[str, str] = {}  # space -> the premise encoder that failed here

    async def open_default(self, space_id: str, version: str, *, retry_failed: bool) -> None:
        """Makes a space the default, and serves its `stable` with it. Raises what is wrong when nothing else serves."""
        if (self._versions.space_id, self._versions.premise_version) == (space_id, version):
            return
        if self._failed.get(space_id) == version and self._versions.complete and not retry_failed:
            return
        try:
            premises = await self._load(space_id, version)
        except errors.AeencError:
            if not self._versions.complete:
                raise
            return
        labels = dict(self._versions.labels)
        row_of_stable = await self._registry.label(space_id, STABLE)
        if row_of_stable is not None and (space_id, STABLE) not in labels:
            with contextlib.suppress(errors.AeencError):  # followed, and refused by name, in the same round
                stable = await self._candidates.load(space_id, row_of_stable.version, premises.dim)
                self._versions.models[stable.version] = stable
                here = LabelHere(stable.version, row_of_stable.revision, row_of_stable.share)
                labels[space_id, STABLE] = here
        self._versions.models[version] = premises
        self._versions.premise_versions[space_id] = version
        self._versions.space_id = space_id
        self._versions.labels = labels

    async def open(self, space_id: str, *, retry_failed: bool) -> None:
        """Serves the premises of another space. What is wrong with them is noted; its labels are then refused."""
        version = await self._registry.space(space_id)
        if version is None or self._versions.premise_versions.get(space_id) == version:
            return
        if self._failed.get(space_id) == version and not retry_failed:
            return
        with contextlib.suppress(errors.AeencError):
            self._versions.models[version] = await self._load(space_id, version)
            self._versions.premise_versions[space_id] = version

    def close_all_but(self, spaces: Collection[str]) -> None:
        """Ends spaces in which no label stands any more."""
        for space_id in set(self._versions.premise_versions) - {*spaces, self._versions.space_id}:
            del self._versions.premise_versions[space_id]

    async def model(self, space_id: str, version: str) -> Model:
        """A version of a space, loaded already or now. Raises what speaks against it."""
        dim = None if space_id == CROSS_ENCODERS else self._premises(space_id).dim
        model = self._versions.models.get(version)
        if model is None:
            return await self._candidates.load(space_id, version, dim, beside=True)
        check_place(model.description, space_id, dim)
        return model

    async def restore(self, saved: SavedSpace) -> None:
        """Opens a space as it was served last, without the registry."""
        premise = await self._candidates.load_known(
            saved.space_id, saved.premise_version, saved.premise_manifest_sha256, None
        )
        self._versions.models[premise.version] = premise
        self._versions.premise_versions[saved.space_id] = premise.version

    async def restore_model(self, space_id: str, version: str, manifest_sha256: str) -> Model:
        """A version of a space that was served last, without the registry."""
        dim = None if space_id == CROSS_ENCODERS else self._premises(space_id).dim
        model = self._versions.models.get(version)
        return model or await self._candidates.load_known(space_id, version, manifest_sha256, dim)

    def _premises(self, space_id: str) -> Model:
        version = self._versions.premise_versions.get(space_id)
        if version is None:
            why = self._swaps.last_failure((space_id, PREMISES)) or "the registry names none"
            raise errors.FailedPrecondition(f"the premise encoder of space {space_id} cannot be served: {why}")
        return self._versions.models[version]

    async def _load(self, space_id: str, version: str) -> Model:
        started = time.monotonic()
        try:
            loaded = self._versions.models.get(version)
            beside = self._versions.complete
            model = loaded or await self._candidates.load(space_id, version, None, beside=beside)
        except errors.AeencError as error:
            row = LabelRow(space_id, PREMISES, version, 0, "", datetime.now(UTC))
            self._swaps.note(row, time.monotonic() - started, error.message)
            self._failed[space_id] = version
            raise
        self._failed.pop(space_id, None)
        return model
