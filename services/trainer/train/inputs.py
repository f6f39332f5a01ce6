"""A job's inputs, loaded, and what is trained on them: encoders (here) or a cross-encoder (`reranking.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aeenc.errors import NotFound
from services.corpus.generation import Generation, open_generation
from services.store.artifacts import Artifact, ArtifactStore, Hold
from services.store.objects import open_store
from services.trainer.evaluation.protocol import EvaluationQuery, Report, evaluate, merge_queries
from services.trainer.evaluation.ranking import Matrix
from services.trainer.jobs.files import JobFiles, Precision, TrainingPlan
from services.trainer.jobs.training_set import TrainingSet, as_stored, build_training_set
from services.trainer.models.batches import Batches, outputs_of
from services.trainer.models.space import SpaceSpec
from services.trainer.registry.checkpoints import FOLDER
from services.trainer.train.data import FrozenVectors, Objective, Texts
from services.trainer.train.encoder import Encoders, QueryEncoder, device_of, encode, load_encoder, precision_of
from services.trainer.train.export.checkpoint import exported_encoder
from services.trainer.train.export.quantization import FILE as INT8_FILE
from services.trainer.train.export.quantization import Int8Trial
from services.trainer.train.export.writer import write_checkpoint
from services.trainer.train.loop import BEST_PREMISES, best_weights
from services.trainer.train.objectives import LossData, build_objective, check_training_set, formula_of, ordinals_of
from services.trainer.train.ranks import Rank


@dataclass(frozen=True)
class JobInputs:
    """A job's inputs on its device."""

    plan: TrainingPlan
    store: ArtifactStore
    base: Artifact
    generation: Generation
    training_set: TrainingSet
    validation: list[EvaluationQuery]
    spec: SpaceSpec
    batches: Batches
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
        store = open_store(Path(plan.artifacts_dir), plan.artifacts_url, is_known=True)
        held = [hold_checkpoint(store, plan.config.base_version)]
        base = open_checkpoint(store, plan.config.base_version)
        corpus = plan.config.corpus
        with _named(f"generation {plan.generation} of corpus {corpus!r}"):
            generation = open_generation(store, corpus, plan.generation)
        if plan.config.mode == "CROSS_ENCODER":  # begins and ends with its layout
            held.append(hold_checkpoint(store, generation.premise_version))
        queries = merge_queries(files.validation(), generation.stored)
        validation = sorted(queries, key=lambda query: query.text)  # comparable by position
        held_out = frozenset(files.held_out())
        training_set = build_training_set(
            as_stored(files.pairs(), generation),
            generation.premises,
            plan.config.split,
            held_out,
            own_text=plan.config.own_text,
            validation={query.text for query in validation},
        )
        check_training_set(training_set, plan.config, plan.loss)
        spec = SpaceSpec.of_meta(base.meta)
        if plan.config.mode in {"SIAMESE", "DUAL"}:  # what encodes premises in the new space is trained in torch
            spec = replace(spec, premise_precision="float32")
        batches = Batches.of(base.path, spec, base.meta["pad_id"])
        device = device_of(plan.means.device, rank.number, plan.means.gpu_bytes)
        candidates = files.candidates() if plan.config.candidates else {}
        return cls(
            plan, store, base, generation, training_set, validation, spec, batches, device, held_out, candidates, held
        )

    @property
    def precision(self) -> Precision:
        """The precision of matrix products."""
        return precision_of(self.plan.means.precision, self.device)

    @property
    def pretrained(self) -> Artifact:
        """The checkpoint of the space's pre-trained encoder."""
        return open_checkpoint(self.store, self.generation.premise_version)

    def frozen(self, version: str, texts: Sequence[str], prefix: str) -> NDArray[np.float32]:
        """Encodes texts (n, dim) by a version; empty for the space's pre-trained encoder."""
        artifact = open_checkpoint(self.store, version or self.generation.premise_version)
        frozen = load_encoder(artifact.path, self.spec).to(self.device)
        return encode(frozen, self.batches, texts, prefix)


class EncoderTask:
    """Trains a query encoder and, in modes SIAMESE and DUAL, a premise encoder."""

    rankings = ""  # on which reports depend beside the queries and the generation

    def __init__(self, inputs: JobInputs) -> None:
        self.inputs, self._mode = inputs, inputs.plan.config.mode

    def encoders(self, kept: Path | None = None) -> Encoders[QueryEncoder]:
        """Loads the encoders that training starts from, or those that it has kept in a directory."""
        query = self._encoder(None if kept is None else best_weights(kept))
        of_premises = None if kept is None else best_weights(kept, BEST_PREMISES)
        premise = self._encoder(of_premises) if self._mode == "DUAL" else None
        return Encoders(query, query if self._mode == "SIAMESE" else premise)

    def _encoder(self, weights: dict[str, Tensor] | None = None) -> QueryEncoder:
        return load_encoder(self.inputs.base.path, self.inputs.spec, weights).to(self.inputs.device)

    def objective(self) -> Objective:
        """Builds the loss on the data; encodes premises outside the generation once, by the premise encoder."""
        inputs, config = self.inputs, self.inputs.plan.config
        examples, outside = inputs.training_set.examples, inputs.training_set.outside
        weight, device = config.regularization, inputs.device
        how = inputs.batches, device, inputs.precision
        drifts_from = FrozenVectors(self._queries_by(""), device=device) if weight else None
        asked = dict(enumerate(example.query for example in examples))
        queries = Texts(asked, inputs.spec.query_prefix, *how, drifts_from, weight)
        vectors = FrozenVectors(inputs.generation.vectors, self._outside(outside) if outside else None, device)
        premises: FrozenVectors | Texts = vectors
        if self._mode != "SINGLE":
            texts = [*(premise.text for premise in inputs.generation.premises), *outside]
            used = {number: texts[number] for number in ordinals_of(inputs.training_set).tolist()}
            premises = Texts(used, inputs.spec.premise_prefix, *how, vectors if weight else None, weight)
        guide = torch.from_numpy(self._queries_by(config.guide_version)).to(device) if config.loss == "GIST" else None
        data = LossData(formula_of(inputs.plan.loss), inputs.training_set, queries, vectors, premises, config, guide)
        return build_objective(data, inputs.plan.loss, config.loss_name)

    def before(self) -> Report | None:
        """Measures the base version, as served: on the existing vectors."""
        return self.judged(Encoders(self._encoder()))[0]

    def judged(self, encoders: Encoders[QueryEncoder]) -> tuple[Report | None, Int8Trial | None]:
        """Measures the quality of encoders, and returns the data of the int8 gate, None where int8 is off.

        Both are None without gold queries.
        """
        if not self.inputs.validation:
            return None, None
        texts, corpus = [query.text for query in self.inputs.validation], self.corpus(encoders)
        prefix, measured = self.inputs.spec.query_prefix, partial(self._report, premises=corpus)
        report = measured(encode(encoders.query, self.inputs.batches, texts, prefix))
        trial = Int8Trial([prefix + text for text in texts], len(texts), lambda vectors: measured(vectors).strict.map)
        return report, trial if self.inputs.plan.means.int8 else None

    def served(self, version: str) -> Report:
        """Measures a published version against the existing vectors."""
        texts = [query.text for query in self.inputs.validation]
        return self._report(
            self.inputs.frozen(version, texts, self.inputs.spec.query_prefix), self.inputs.generation.vectors
        )

    def _report(self, queries: NDArray[np.float32], premises: Matrix) -> Report:
        return evaluate(self.inputs.validation, queries, premises, self.inputs.generation.premises.ordinal_by_text)

    def corpus(self, encoders: Encoders[QueryEncoder]) -> Matrix:
        """Returns the vectors (n, dim) of all premises: the generation's, or by the trained premise encoder."""
        if encoders.premise is None:
            return self.inputs.generation.vectors
        texts = [premise.text for premise in self.inputs.generation.premises]
        prefix = self.inputs.spec.premise_prefix
        return encode(encoders.premise, self.inputs.batches, texts, prefix)

    def write(self, encoders: Encoders[QueryEncoder], meta: dict[str, Any], *of_query: Any) -> dict[str, str]:
        """Writes checkpoints: the `version` of the query encoder and, in a new space, the `premise_version`.

        `of_query`: the metrics and the data of the int8 gate, as `write_checkpoint` takes them.
        """
        if encoders.premise is None:
            meta = {**meta, "space_id": self.inputs.base.meta["space_id"]}
            return {"version": self._write(encoders.query, meta, *of_query).id}
        if encoders.second is None:  # one checkpoint encodes both and spans the space
            version = self._write(encoders.query, meta, *of_query).id
            return {"version": version, "premise_version": version}
        premise = self._write(encoders.second, {**meta, "lineage": {**meta["lineage"], "encodes": "premises"}})
        lineage = {**meta["lineage"], "premise_version": premise.id}
        meta = {**meta, "space_id": premise.meta["space_id"], "lineage": lineage}
        return {"version": self._write(encoders.query, meta, *of_query).id, "premise_version": premise.id}

    def _write(self, encoder: QueryEncoder, meta: dict[str, Any], *of_query: Any) -> Artifact:
        model = exported_encoder(encoder, self.inputs.batches, self.inputs.base.path)
        return write_checkpoint(self.inputs.store, model, meta, *of_query, fp16=self.inputs.plan.means.fp16)

    def _outside(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encodes premises (n, dim) that the generation lacks, as the space encodes its own."""
        prefix = self.inputs.spec.premise_prefix
        if self.inputs.spec.premise_precision == "float32":
            return self.inputs.frozen("", texts, prefix)
        model = self.inputs.pretrained.file(INT8_FILE)
        return outputs_of(model, self.inputs.batches, [prefix + text for text in texts])

    def _queries_by(self, version: str) -> NDArray[np.float32]:
        texts = [example.query for example in self.inputs.training_set.examples]
        return self.inputs.frozen(version, texts, self.inputs.spec.query_prefix)


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
