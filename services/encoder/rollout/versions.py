"""The served versions: loaded models, and the labels and spaces that name them.

Only `Versions` changes what is served, on the event loop only. A swap replaces one reference; calls in flight keep
theirs. A version that nothing names is dropped, and its memory goes when its last call has ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aeenc.errors import FailedPrecondition, SpaceMismatch, Unavailable, Unimplemented, VersionNotLoaded
from services.encoder.runtime.model import FLOAT32, Model
from services.store.registry_rows import CROSS_ENCODERS, LabelRow

STABLE, CANARY = "stable", "canary"
LabelKey = tuple[str, str]  # space and label
Computation = tuple[str, str]  # version and precision


@dataclass(frozen=True)
class Selection:
    """The model a call asks for: a version, a label, or neither; then `routing_key` decides about the canary."""

    label: str = ""
    version: str = ""
    space_id: str = ""
    routing_key: str = ""


class Versions:
    """Loaded models by version, and the labels of each space that name some of them. Only its methods change them.

    `space_id` is the default space, empty before there is one. `premise_versions` holds the premise encoder of each
    served space; cross-encoders belong to none. A label that serves another version than its row names is at revision
    0.
    """

    def __init__(self) -> None:
        self.space_id = ""
        self.premise_versions: dict[str, str] = {}
        self.labels: dict[LabelKey, LabelRow] = {}
        self.models: dict[str, Model] = {}

    @property
    def premise_version(self) -> str:
        """The premise encoder of the default space; empty before there is one."""
        return self.premise_versions.get(self.space_id, "")

    @property
    def premises(self) -> Computation:
        """The premise encoder of the default space, and its precision."""
        model = self.models.get(self.premise_version)
        return self.premise_version, model.description.premise_precision if model else FLOAT32

    @property
    def complete(self) -> bool:
        """Whether queries and premises of the default space can be encoded."""
        return self.premise_version in self.models and (self.space_id, STABLE) in self.labels

    def precision_of(self, version: str) -> str:
        """Returns the precision of a version that is named: that of its labels, float32 where these differ."""
        of_labels = {row.precision for row in self.labels.values() if version in row.versions}
        return of_labels.pop() if len(of_labels) == 1 else FLOAT32

    def resolve(self, role: str, selection: Selection) -> tuple[Model, str]:
        """Returns the model for a text, and its precision.

        Raises SpaceMismatch, FailedPrecondition or VersionNotLoaded.
        """
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
            model = self.models[self.premise_versions[space_id]]
            return model, model.description.premise_precision
        return self._named(space_id, selection)[:2]

    def resolve_cross_encoder(self, selection: Selection) -> tuple[Model, str, Sequence[str]]:
        """Returns the cross-encoder for a Score, its precision, and all versions of its label where these are several.

        Raises Unimplemented without any, or without a stable one where none is named, VersionNotLoaded for another.
        """
        published = {name for space, name in self.labels if space == CROSS_ENCODERS}
        if not published or (STABLE not in published and not (selection.version or selection.label)):
            raise Unimplemented(
                "no cross-encoder is `stable` here; publish one, name one in AEENC_TRAINER_CROSS_ENCODER, or rank by "
                "the scores of IndexService.Retrieve"
            )
        model, precision, versions = self._named(CROSS_ENCODERS, selection)
        return model, precision, versions if len(versions) > 1 else ()

    def _named(self, space_id: str, selection: Selection) -> tuple[Model, str, Sequence[str]]:
        """Returns the model of a version, or the first of a label, its precision, and all versions of the label."""
        if selection.version:
            model = self.models.get(selection.version)
            if model is None or model.space_id != space_id:
                loaded = ", ".join(sorted(name for name, one in self.models.items() if one.space_id == space_id))
                raise VersionNotLoaded(
                    f"version {selection.version!r} is not loaded ({loaded} are); point a label at it: "
                    f"`aeenc publish {selection.version} --label trial`"
                )
            return model, self.precision_of(model.version), [model.version]
        label = selection.label or (CANARY if self._is_canary(space_id, selection.routing_key) else STABLE)
        row = self.labels.get((space_id, label))
        if row is None:
            named = ", ".join(sorted(name for space, name in self.labels if space == space_id))
            raise VersionNotLoaded(f"label {label!r} names nothing here (there are {named})")
        return self.models[row.versions[0]], row.precision, row.versions

    def _is_canary(self, space_id: str, routing_key: str) -> bool:
        """Whether the canary gets a call. Every encoder decides the same for one key."""
        canary = self.labels.get((space_id, CANARY))
        if canary is None or canary.share <= 0.0:
            return False
        digest = hashlib.blake2b(routing_key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < canary.share

    def keep(self, model: Model) -> None:
        """Keeps a model that a label is to name, until `drop_unnamed`."""
        self.models[model.version] = model

    def serve(self, row: LabelRow) -> None:
        """Serves a label, whose models are kept. The assignment is the swap."""
        self.labels[row.space_id, row.name] = row

    def failing(self, computations: Collection[Computation] | None = None) -> str:
        """Says which of these, or of all, fails every run, and why; empty when none does."""
        for version, model in self.models.items():
            for precision, why in model.failing.items():
                if computations is None or (version, precision) in computations:
                    return f"version {version} fails every run in {precision}: {why}"
        return ""

    def withdraw_all_but(self, keys: Collection[LabelKey]) -> None:
        """Stops serving every other label."""
        for key in set(self.labels).difference(keys):
            del self.labels[key]

    def open_space(self, space_id: str, premises: Model) -> None:
        """Serves the premises of a space."""
        self.keep(premises)
        self.premise_versions[space_id] = premises.version

    def prefer(self, space_id: str) -> None:
        """Makes a space the default one, once its `stable` is served."""
        if (space_id, STABLE) in self.labels:
            self.space_id = space_id

    def close_spaces_but(self, spaces: Collection[str]) -> None:
        """Closes every other space except the default one."""
        for space_id in set(self.premise_versions) - {*spaces, self.space_id}:
            del self.premise_versions[space_id]

    def drop_unnamed(self) -> list[Model]:
        """Drops every version that neither a label nor a space names, and returns the models."""
        named = set(self.premise_versions.values()).union(*(row.versions for row in self.labels.values()))
        return [self.models.pop(version) for version in set(self.models) - named]
