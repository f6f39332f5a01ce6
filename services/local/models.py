"""Encoders and cross-encoders of a store of artifacts, loaded by the encoder's code when first asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from aeenc.calls.encoding import Encoded, EncodeOptions
from aeenc.errors import FailedPrecondition, Unimplemented, VersionNotLoaded
from aeenc.values import Timings
from services.encoder.rollout.loading import LoadOptions, add_precision, load_model
from services.encoder.rollout.versions import STABLE, LabelKey, Versions
from services.encoder.runtime.model import FLOAT32, Model
from services.encoder.runtime.runners import Tokens
from services.index.ranking.fusion import reranked
from services.index.values import SearchHits, TextQuery
from services.onnx_devices import CPU, Placement
from services.store.artifacts import ArtifactStore
from services.store.registry_rows import CROSS_ENCODERS, LabelRow

FOLDER = "checkpoints"
OPTIONS = LoadOptions(sys.maxsize, Placement([CPU]))


class LocalModels:
    """Encodes queries and re-ranks. `labels` say what each label names; `version` is the query encoder by default.

    Where neither does, queries are encoded as premises were: `premise_versions` has the premise encoder of each space.
    """

    def __init__(self, store: ArtifactStore, labels: Mapping[LabelKey, LabelRow], version: str = "") -> None:
        self._store, self._version = store, version
        self._labelled = Versions()
        self._labelled.labels |= labels
        self.premise_versions: dict[str, str] = {}
        self._models: dict[str, Model] = {}

    async def encode(
        self,
        texts: Sequence[str],
        key: EncodeOptions,
        _request_id: str,  # there is no log
        _left_s: float | None,  # nor a deadline
    ) -> Encoded:
        """Encodes texts one by one: their vectors do not depend on each other.

        Raises VersionNotLoaded for a label that names nothing, NotFound for an unknown version.
        """
        version, precision = self._named(key)
        model = self._loaded(version, key.space_id, key.precision or precision)
        precision = model.choose(key.precision or "", precision, "query")
        prefix = model.description.prefixes["query"]
        tokens = model.tokenization.texts([prefix + text for text in texts], truncate=key.truncate)
        return Encoded(
            vectors=_rows(model, precision, tokens.tokens),
            model_version=version,
            space_id=model.space_id,
            timings=Timings(),
            truncated=tokens.truncated,
            precision=precision,
            tokens=sum(len(one.ids) for one in tokens.tokens),
        )

    async def rerank(
        self,
        query: TextQuery,
        hits: Sequence[SearchHits],
        premises: Sequence[Sequence[str]],
        _left_s: float | None,  # there is no deadline
    ) -> tuple[list[SearchHits], tuple[str, ...]]:
        """Re-ranks each text's hits by the cross-encoders that it names, or those of label `stable`; gives these, too.

        Raises Unimplemented without any, FailedPrecondition for a rerank_weight where the label names an ensemble.
        """
        row = self._labelled.labels.get((CROSS_ENCODERS, STABLE))
        named = {version: self._labelled.precision_of(version) for version in query.rerank_versions}
        if not named and row is not None:
            named = dict.fromkeys(row.versions, row.precision)
        if not named:
            raise Unimplemented(
                "no cross-encoder is `stable` here; publish one, name rerank_versions, or leave rerank out"
            )
        if len(named) > 1 and query.rerank_weight:
            raise FailedPrecondition("an ensemble ranks by its sum of ranks alone; set rerank_weight to 0")
        if query.precision == FLOAT32:
            named = dict.fromkeys(named, FLOAT32)
        models = [self._loaded(version, CROSS_ENCODERS, precision) for version, precision in named.items()]
        ranked = []
        for text, own, found in zip(query.texts, premises, hits, strict=True):
            pairs = [model.tokenization.pairs(text, own, truncate=True).tokens if own else [] for model in models]
            each = zip(models, named.values(), pairs, strict=True)
            scores = [_rows(model, precision, one)[:, 0] for model, precision, one in each if one]
            ranked.append(reranked(found, scores, query.scope.k, query.rerank_weight))
        return ranked, tuple(named)

    def _named(self, key: EncodeOptions) -> tuple[str, str]:
        """Returns the version that a call asks for, and its precision."""
        if version := key.version or ("" if key.label else self._version):
            return version, self._labelled.precision_of(version)
        labels = self._labelled.labels
        row = labels.get((key.space_id, key.label or STABLE))
        if row is not None:
            return row.version, row.precision
        if key.label in {None, STABLE}:
            return self.premise_versions[key.space_id], FLOAT32
        named = ", ".join(sorted(name for space, name in labels if space == key.space_id)) or "none"
        raise VersionNotLoaded(f"label {key.label!r} names nothing here (there are {named}); name a version")

    def _loaded(self, version: str, space_id: str, precision: str) -> Model:
        """Returns a model with a precision, of a space. Raises NotFound, FailedPrecondition, DataLoss."""
        artifact = self._store.open(FOLDER, version, verify="size")
        model = self._models.get(version)
        if model is None:
            hold = self._store.hold(FOLDER, version)
            model = load_model(artifact, OPTIONS, space_id=space_id)
            model.reserved.append(hold)
            self._models[version] = model
        if precision not in model.runners:
            add_precision(model, artifact, OPTIONS, precision)
        return model


def _rows(model: Model, precision: str, tokens: Sequence[Tokens]) -> NDArray[np.float32]:
    return np.concatenate([model.runners[precision].run([one]) for one in tokens])
