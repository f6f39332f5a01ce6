"""The versions that are loaded and the labels that name them. A swap replaces one reference; readers keep theirs.

Used from the event loop only. A version is dropped when nothing names it; its memory goes when its last call has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aeenc.errors import FailedPrecondition, SpaceMismatch, Unavailable, VersionNotLoaded
from services.encoder.model import Model


@dataclass(frozen=True)
class LabelHere:
    """A label as this process serves it."""

    version: str
    revision: int


@dataclass
class Versions:
    """Loaded models of one space, by version; `labels` names some of them; `premise_version` encodes premises."""

    space_id: str = ""
    premise_version: str = ""
    labels: dict[str, LabelHere] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    in_flight: Counter[str] = field(default_factory=Counter)

    @property
    def complete(self) -> bool:
        """Whether queries and premises can be encoded."""
        return self.premise_version in self.models and "stable" in self.labels

    def resolve(self, *, role: str, label: str, version: str, space_id: str) -> Model:
        """The model for a call. Raises SpaceMismatch, FailedPrecondition or VersionNotLoaded, naming what is loaded."""
        if not self.complete:
            raise Unavailable("no version is loaded yet; retry when health says SERVING")
        if space_id and space_id != self.space_id:
            raise SpaceMismatch(
                f"this encoder serves space {self.space_id}, not {space_id}; ask an encoder of that space"
            )
        if role == "premise":
            if label or version:
                raise FailedPrecondition("premises are always encoded by the space's own encoder; leave `model` unset")
            return self.models[self.premise_version]
        if version:
            if version not in self.models:
                loaded = ", ".join(sorted(self.models))
                raise VersionNotLoaded(f"version {version!r} is not loaded ({loaded} are); point a label at it")
            return self.models[version]
        named = self.labels.get(label or "stable")
        if named is None:
            raise VersionNotLoaded(f"label {label!r} names nothing here (there are {', '.join(sorted(self.labels))})")
        return self.models[named.version]

    @contextmanager
    def held(self, model: Model) -> Iterator[None]:
        """Counts a call that uses a model; GetInfo shows it."""
        self.in_flight[model.version] += 1
        try:
            yield
        finally:
            self.in_flight[model.version] -= 1

    def drop_unnamed(self) -> None:
        """Forgets every version that neither a label nor the premises name."""
        named = {here.version for here in self.labels.values()} | {self.premise_version}
        for version in set(self.models) - named:
            del self.models[version]
