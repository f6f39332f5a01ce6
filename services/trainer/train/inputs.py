"""A job's inputs, loaded: the encoder it starts from, the premise matrix, the training set, gold queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from aeenc.errors import NotFound
from services.corpus.generation import Generation, open_generation
from services.kit.logs import get
from services.store.artifacts import Artifact, ArtifactStore, Hold
from services.store.objects import open_store
from services.trainer.evaluation.protocol import EvaluationQuery, Report, evaluate, merge_queries
from services.trainer.evaluation.ranking import Matrix
from services.trainer.jobs.files import JobFiles, Precision, TrainingPlan
from services.trainer.jobs.training_set import TrainingSet, build_training_set
from services.trainer.models.space import SpaceSpec
from services.trainer.registry.checkpoints import FOLDER
from services.trainer.train.data import FrozenVectors, Objective, Premises, Queries, TrainedPremises
from services.trainer.train.encoder import (
    Encoders,
    QueryEncoder,
    TextBatches,
    device_of,
    encode,
    load_encoder,
    precision_of,
)
from services.trainer.train.export.quantization import FILE as INT8_FILE
from services.trainer.train.export.quantization import Trial, vectors_alone
from services.trainer.train.loop import BEST, BEST_PREMISES
from services.trainer.train.objectives import LossData, build_objective, check_training_set, formula_of, ordinals_of
from services.trainer.train.ranks import Rank

log = get(__name__)


@dataclass(frozen=True)
class JobInputs:
    """A job's inputs on its device, and what is computed of them: encoders, objective, evaluations."""

    plan: TrainingPlan
    store: ArtifactStore
    base: Artifact
    generation: Generation
    training_set: TrainingSet
    validation: list[EvaluationQuery]
    spec: SpaceSpec
    batches: TextBatches
    device: torch.device
    held_out: frozenset[str] = frozenset()
    candidates: Mapping[str, Sequence[str]] = field(default_factory=dict)
    held: Sequence[Hold] = ()  # of checkpoints that are read again in the end: a cache evicts what nobody holds

    @classmethod
    def load(cls, files: JobFiles, rank: Rank) -> JobInputs:
        """Loads what a job's directory names.

        Raises FailedPrecondition for data that its loss cannot use, and for a missing GPU; NotFound for a generation or
        checkpoint that has been deleted since the job began.
        """
        plan = files.plan()
        store = open_store(Path(plan.artifacts_dir), plan.artifacts_url)
        held = [hold_checkpoint(store, plan.config.base_version)]
        base = open_checkpoint(store, plan.config.base_version)
        corpus = plan.config.corpus
        with _named(f"generation {plan.generation} of corpus {corpus!r}"):
            generation = open_generation(store, corpus, plan.generation)
        if plan.config.mode == "CROSS_ENCODER":  # begins and ends with its layout
            held.append(hold_checkpoint(store, generation.premise_version))
        training_set = build_training_set(
            files.pairs(),
            generation.premises,
            plan.config.split,
            files.held_out(),
            own_text=plan.config.own_text,
            validation={query.text for query in files.validation()},
        )
        check_training_set(training_set, plan.config, plan.loss)
        spec = SpaceSpec.of_meta(base.meta)
        if plan.config.mode in {"SIAMESE", "DUAL"}:  # what encodes premises in the new space is trained in torch
            spec = replace(spec, premise_precision="float32")
        batches = TextBatches(base.path, spec, base.meta["pad_id"])
        device = device_of(plan.means.device, rank.number)
        validation = sorted(merge_queries(files.validation()), key=lambda query: query.text)  # comparable by position
        held_out = frozenset(files.held_out())
        candidates = files.candidates() if plan.config.candidates else {}
        return cls(
            plan, store, base, generation, training_set, validation, spec, batches, device, held_out, candidates, held
        )

    @property
    def precision(self) -> Precision:
        """The precision of matrix products."""
        return precision_of(self.plan.means.precision, self.device)

    def encoder(self, weights: Path | None = None) -> QueryEncoder:
        """Loads the encoder that training starts from, or with a file of weights."""
        tensors = None if weights is None else load_file(weights)
        return load_encoder(self.base.path, self.spec, tensors).to(self.device)

    def encoders(self, kept: Path | None = None) -> Encoders[Any]:
        """Loads the encoders that training starts from, or those that it has kept in a directory."""
        query = self.encoder(kept and kept / BEST)
        if self.plan.config.mode == "SIAMESE":
            return Encoders(query, query)
        return Encoders(query, self.encoder(kept and kept / BEST_PREMISES) if self.plan.config.mode == "DUAL" else None)

    def objective(self) -> Objective:
        """Builds the loss on the data; encodes premises outside the generation once, by the premise encoder."""
        config, training_set = self.plan.config, self.training_set
        texts = training_set.outside
        outside = self._outside(texts) if texts else None
        premises = self._premises(FrozenVectors(self.generation.vectors, outside, self.device))
        queries = Queries(
            training_set,
            self.batches,
            self.spec.query_prefix,
            self.device,
            self._queries_by("") if config.regularization else None,
            config.regularization,
            self.precision,
        )
        guide = self._queries_by(config.guide_version) if config.loss == "GIST" else None
        data = LossData(formula_of(self.plan.loss), training_set, queries, premises, config, guide)
        return build_objective(data, self.plan.loss, config.loss_name)

    def corpus(self, encoders: Encoders[Any]) -> Matrix:
        """Returns the vectors (n, dim) of all premises: the generation's, or by the trained premise encoder."""
        if encoders.premise is None:
            return self.generation.vectors
        texts = [premise.text for premise in self.generation.premises]
        vectors: NDArray[np.float32] = encode(encoders.premise, self.batches, texts, self.spec.premise_prefix)
        return vectors

    def evaluate(self, encoders: Encoders[Any], corpus: Matrix | None = None) -> Report | None:
        """Measures the quality on the gold queries, against `corpus` or the encoders' own; None without queries."""
        if not self.validation:
            return None
        texts = [query.text for query in self.validation]
        vectors = encode(encoders.query, self.batches, texts, self.spec.query_prefix)
        premises = self.corpus(encoders) if corpus is None else corpus
        return evaluate(self.validation, vectors, premises, self.generation.ordinal_by_text)

    def serving(self) -> dict[str, Report]:
        """Measures the versions that served when the job was taken up, on the gold queries; those that can be read."""
        found = {}
        others = [version for version in self.plan.serving if version != self.base.id]  # that one is measured before
        for version in others if self.validation else ():
            try:
                found[version] = self._served(version)
            except Exception as error:
                log.warning("a serving version was not measured", version=version, reason=str(error), exc_info=error)
        return found

    def _served(self, version: str) -> Report:
        """Measures a published version on the gold queries, against the existing vectors."""
        vectors = self._frozen(version, [query.text for query in self.validation], self.spec.query_prefix)
        return evaluate(self.validation, vectors, self.generation.vectors, self.generation.ordinal_by_text)

    def trial(self, corpus: Matrix) -> Trial | None:
        """Returns the data of the int8 gate; None if int8 is off or there are no gold queries."""
        if not (self.plan.means.int8 and self.validation):
            return None
        ids = self.batches.ids([query.text for query in self.validation], self.spec.query_prefix)
        return Trial(self.validation, ids, corpus, self.generation.ordinal_by_text)

    def _premises(self, vectors: FrozenVectors) -> Premises:
        """Builds the mode's premises from vectors of the initial space."""
        config = self.plan.config
        if config.mode == "SINGLE":
            return Premises(vectors)
        texts = [*(premise.text for premise in self.generation.premises), *self.training_set.outside]
        used = ordinals_of(self.training_set)
        prefix, precision = self.spec.premise_prefix, self.precision
        return TrainedPremises(vectors, texts, used, self.batches, prefix, config.regularization, precision)

    def _outside(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encodes premises (n, dim) that the generation lacks, as the space encodes its own."""
        if self.spec.premise_precision == "float32":
            return self._frozen("", texts, self.spec.premise_prefix)
        encoder = open_checkpoint(self.store, self.generation.premise_version)
        return vectors_alone(encoder.file(INT8_FILE), self.batches.ids(texts, self.spec.premise_prefix))

    def _queries_by(self, version: str) -> Tensor:
        texts = [example.query for example in self.training_set.examples]
        return torch.from_numpy(self._frozen(version, texts, self.spec.query_prefix)).to(self.device)

    def _frozen(self, version: str, texts: Sequence[str], prefix: str) -> NDArray[np.float32]:
        """Encodes texts (n, dim) by a version; empty for the space's pre-trained encoder."""
        artifact = open_checkpoint(self.store, version or self.generation.premise_version)
        frozen = load_encoder(artifact.path, self.spec).to(self.device)
        vectors: NDArray[np.float32] = encode(frozen, self.batches, texts, prefix)
        return vectors


def open_checkpoint(store: ArtifactStore, version: str) -> Artifact:
    """Opens a checkpoint that the job needs. Raises NotFound with the remedy if it has been deleted."""
    with _named(f"checkpoint {version}"):
        return store.open(FOLDER, version)


def hold_checkpoint(store: ArtifactStore, version: str) -> Hold:
    """Keeps the files of a checkpoint that the job needs, as long as what it returns lives. Raises as above."""
    with _named(f"checkpoint {version}"):
        return store.hold(FOLDER, version)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Says of something that the job needs and that is gone what to do: a later attempt would not find it either."""
    try:
        yield
    except NotFound as error:
        raise NotFound(f"{what}, which the job began with, has been deleted; start a new job") from error
