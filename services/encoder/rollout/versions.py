"""The served versions: loaded models, and the labels and spaces that name them.

Only `Versions` changes what is served, on the event loop only. A swap replaces one reference; calls in flight keep
theirs. A version that nothing names is dropped, and its memory goes when its last call has ended.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from aeenc.errors import FailedPrecondition, SpaceMismatch, Unavailable, Unimplemented, VersionNotLoaded
from services.encoder.runtime.model import Model
from services.store.registry_rows import CROSS_ENCODERS, versions_of

STABLE, CANARY = "stable", "canary"
LabelKey = tuple[str, str]  # space and label


@dataclass(frozen=True)
class ServedLabel:
    """A label as this process serves it. `share`: the part of calls without a model that `canary` gets."""

    version: str  # those of an ensemble joined by +
    revision: int
    share: float = 0.0

    @property
    def versions(self) -> list[str]:
        """The version, or those of the ensemble."""
        return versions_of(self.version)


@dataclass(frozen=True)
class Selection:
    """The model a call asks for: a version, a label, or neither; then `routing_key` decides about the canary."""

    label: str = ""
    version: str = ""
    space_id: str = ""
    routing_key: str = ""


class Versions:
    """Loaded models by version, and the labels of each space that name some of them. Only its methods change them.

    `space_id` is the default space. `premise_versions` holds the premise encoder of each served space; cross-encoders
    belong to none.
    """

    def __init__(self) -> None:
        self._space_id = ""
        self._premise_versions: dict[str, str] = {}
        self._labels: dict[LabelKey, ServedLabel] = {}
        self._models: dict[str, Model] = {}
        self._failing: dict[str, str] = {}
        self.in_flight: Counter[Model] = Counter()

    @property
    def space_id(self) -> str:
        """The default space; empty before there is one."""
        return self._space_id

    @property
    def premise_versions(self) -> Mapping[str, str]:
        """The premise encoder of each served space."""
        return self._premise_versions

    @property
    def labels(self) -> Mapping[LabelKey, ServedLabel]:
        """The served labels."""
        return self._labels

    @property
    def models(self) -> Mapping[str, Model]:
        """The loaded models by version."""
        return self._models

    @property
    def premise_version(self) -> str:
        """The premise encoder of the default space; empty before there is one."""
        return self.premise_versions.get(self.space_id, "")

    @property
    def complete(self) -> bool:
        """Whether queries and premises of the default space can be encoded."""
        return self.premise_version in self.models and (self.space_id, STABLE) in self.labels

    def resolve(self, role: str, selection: Selection) -> Model:
        """Returns the model for a text. Raises SpaceMismatch, FailedPrecondition or VersionNotLoaded."""
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

    def resolve_cross_encoder(self, selection: Selection) -> tuple[Model, Sequence[str]]:
        """Returns the cross-encoder for a Score, and all versions of its label where these are several.

        Raises Unimplemented without any, or without a stable one where none is named, VersionNotLoaded for another.
        """
        published = {name for space, name in self.labels if space == CROSS_ENCODERS}
        if not published or (STABLE not in published and not (selection.version or selection.label)):
            raise Unimplemented(
                "no cross-encoder is `stable` here; publish one, name one in AEENC_TRAINER_CROSS_ENCODER, or rank by "
                "the scores of IndexService.Retrieve"
            )
        model = self._named(CROSS_ENCODERS, selection)
        if selection.version:
            return model, ()
        here = self.labels[CROSS_ENCODERS, self._label(CROSS_ENCODERS, selection)].versions
        return model, here if len(here) > 1 else ()

    def _named(self, space_id: str, selection: Selection) -> Model:
        if selection.version:
            model = self.models.get(selection.version)
            if model is None or model.space_id != space_id:
                loaded = ", ".join(sorted(name for name, one in self.models.items() if one.space_id == space_id))
                raise VersionNotLoaded(
                    f"version {selection.version!r} is not loaded ({loaded} are); point a label at it: "
                    f"`aeenc publish {selection.version} --label trial`"
                )
            return model
        label = self._label(space_id, selection)
        here = self.labels.get((space_id, label))
        if here is None:
            named = ", ".join(sorted(name for space, name in self.labels if space == space_id))
            raise VersionNotLoaded(f"label {label!r} names nothing here (there are {named})")
        return self.models[here.versions[0]]

    def _label(self, space_id: str, selection: Selection) -> str:
        return selection.label or (CANARY if self._is_canary(space_id, selection.routing_key) else STABLE)

    def _is_canary(self, space_id: str, routing_key: str) -> bool:
        """Whether the canary gets a call. Every encoder decides the same for one key."""
        canary = self.labels.get((space_id, CANARY))
        if canary is None or canary.share <= 0.0:
            return False
        digest = hashlib.blake2b(routing_key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < canary.share

    @contextmanager
    def held(self, model: Model) -> Iterator[None]:
        """Counts a call in flight for a model; GetInfo shows the count."""
        self.in_flight[model] += 1
        try:
            yield
        finally:
            self.in_flight[model] -= 1
            if not self.in_flight[model]:
                del self.in_flight[model]

    def serve(self, key: LabelKey, models: Sequence[Model], label: ServedLabel) -> None:
        """Serves the models of a label's versions. The assignment to the label is the swap."""
        for model in models:
            self._hold(model)
        self._labels[key] = label

    def _hold(self, model: Model) -> None:
        """Keeps a model; what was noted about another one of its version does not count for it."""
        if self._models.get(model.version) is not model:
            self._failing.pop(model.version, None)
            self._models[model.version] = model

    def failing(self, versions: Collection[str]) -> str:
        """Says which of these versions fails every run, and why; empty when none does."""
        return next(
            (f"version {one} fails every run: {why}" for one, why in self._failing.items() if one in versions), ""
        )

    def mark(self, version: str, failure: str) -> bool:
        """Notes that a version fails every run; without a failure, that it computes. Returns whether that is new."""
        changes = bool(failure) != (version in self._failing)
        self._failing.pop(version, None)
        if failure:
            self._failing[version] = failure
        return changes

    def withdraw_all_but(self, keys: Collection[LabelKey]) -> list[LabelKey]:
        """Stops serving every other label, and returns those."""
        withdrawn = [key for key in self._labels if key not in keys]
        for key in withdrawn:
            del self._labels[key]
        return withdrawn

    def open_space(self, space_id: str, premises: Model, *, default: bool = False) -> None:
        """Serves the premises of a space, and makes it the default one on request."""
        self._hold(premises)
        self._premise_versions[space_id] = premises.version
        if default:
            self._space_id = space_id

    def close_spaces_but(self, spaces: Collection[str]) -> None:
        """Closes every other space except the default one."""
        for space_id in set(self._premise_versions) - {*spaces, self._space_id}:
            del self._premise_versions[space_id]

    def drop_unnamed(self) -> list[Model]:
        """Drops every version that neither a label nor a space names, and returns the models."""
        named = set(self._premise_versions.values()).union(*(here.versions for here in self._labels.values()))
        dropped = [self._models.pop(version) for version in set(self._models) - named]
        for model in dropped:
            self._failing.pop(model.version, None)
        return dropped
