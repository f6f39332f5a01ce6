"""The versions that are loaded and the labels that name them. A swap replaces one reference; readers keep theirs.

Used from the event loop only. A version is dropped when nothing names it; its memory goes when its last call has ended.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aeenc.errors import FailedPrecondition, SpaceMismatch, Unavailable, Unimplemented, VersionNotLoaded
from services.encoder.model import CROSS_ENCODERS, Model

STABLE, CANARY = "stable", "canary"


@dataclass(frozen=True)
class LabelHere:
    """A label as this process serves it. `share` of the calls that name no model go to it (label `canary` only)."""

    version: str
    revision: int
    share: float = 0.0


@dataclass(frozen=True)
class Selection:
    """Which model a call asks for: a version, a label, or neither; then `routing_key` decides about the canary."""

    label: str = ""
    version: str = ""
    space_id: str = ""
    routing_key: str = ""


@dataclass
class Versions:
    """Loaded models by version, and the labels of each space that name some of them.

    `space_id` is the default space; `premise_versions` has the encoder of premises of each space that is served.
    Cross-encoders live elsewhere.
    """

    space_id: str = ""
    premise_versions: dict[str, str] = field(default_factory=dict)
    labels: dict[tuple[str, str], LabelHere] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    in_flight: Counter[Model] = field(default_factory=Counter)

    @property
    def premise_version(self) -> str:
        """The encoder of premises of the default space; empty before there is one."""
        return self.premise_versions.get(self.space_id, "")

    @property
    def complete(self) -> bool:
        """Whether queries and premises of the default space can be encoded."""
        return self.premise_version in self.models and (self.space_id, STABLE) in self.labels

    def resolve(self, role: str, selection: Selection) -> Model:
        """The model for a text. Raises SpaceMismatch, FailedPrecondition or VersionNotLoaded, naming what is loaded."""
        if not self.complete:
            raise Unavailable("no version is loaded yet; retry when health says SERVING")
        space_id = selection.space_id or self.space_id
        if space_id not in self.premise_versions:
            raise SpaceMismatch(
                f"this encoder serves space {', '.join(sorted(self.premise_versions))}, not {space_id}; point a label "
                "at a checkpoint of that space, or ask an encoder of it"
            )
        if role == "premise":
            if selection.label or selection.version:
                raise FailedPrecondition("premises are always encoded by the space's own encoder; leave `model` unset")
            return self.models[self.premise_versions[space_id]]
        return self._named(space_id, selection)

    def resolve_cross_encoder(self, selection: Selection) -> Model:
        """The cross-encoder for a Score. Raises Unimplemented without any, VersionNotLoaded for another."""
        if (CROSS_ENCODERS, STABLE) not in self.labels:
            raise Unimplemented(
                "no cross-encoder is published here; name one in AEENC_TRAINER_CROSS_ENCODER, or rank by the scores of "
                "IndexService.Retrieve"
            )
        return self._named(CROSS_ENCODERS, selection)

    def _named(self, space_id: str, selection: Selection) -> Model:
        if selection.version:
            model = self.models.get(selection.version)
            if model is None or model.space_id != space_id:
                loaded = ", ".join(sorted(name for name, one in self.models.items() if one.space_id == space_id))
                raise VersionNotLoaded(
                    f"version {selection.version!r} is not loaded ({loaded} are); point a label at it"
                )
            return model
        label = selection.label or (CANARY if self._is_canary(space_id, selection.routing_key) else STABLE)
        here = self.labels.get((space_id, label))
        if here is None:
            named = ", ".join(sorted(name for space, name in self.labels if space == space_id))
            raise VersionNotLoaded(f"label {label!r} names nothing here (there are {named})")
        return self.models[here.version]

    def _is_canary(self, space_id: str, routing_key: str) -> bool:
        """Whether the canary gets a call: the same answer for one key in every encoder."""
        canary = self.labels.get((space_id, CANARY))
        if canary is None or canary.share <= 0.0:
            return False
        digest = hashlib.blake2b(routing_key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < canary.share

    @contextmanager
    def held(self, model: Model) -> Iterator[None]:
        """Counts a call that uses a model; GetInfo shows it."""
        self.in_flight[model] += 1
        try:
            yield
        finally:
            self.in_flight[model] -= 1
            if not self.in_flight[model]:
                del self.in_flight[model]

    def drop_unnamed(self) -> list[Model]:
        """Forgets every version that neither a label nor the premises name, and gives them back."""
        named = {here.version for here in self.labels.values()} | set(self.premise_versions.values())
        return [self.models.pop(version) for version in set(self.models) - named]
