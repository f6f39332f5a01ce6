"""A job that trains a cross-encoder: the rankings that it re-ranks, and their quality.

Training starts from the space's pre-trained encoder or another base model, whose transformer it keeps and whose pooling
a new head replaces (Nogueira and Cho 2019, "Passage re-ranking with BERT"; regression as in the TextGraphs shared tasks
on explanations).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition
from aeenc.evaluation import UNRANKED
from services.store.files import sha256_of
from services.trainer.evaluation.protocol import GoldStandard, Ranks, Report, evaluate
from services.trainer.evaluation.ranking import nearest, ranks_in
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.training_set import CANDIDATES, TrainingSet
from services.trainer.models.batches import Batches, Pair, by_length, characters, outputs_of
from services.trainer.train.data import Units
from services.trainer.train.encoder import Encoders, autocast, outputs_by, tensors_of
from services.trainer.train.export.cross_encoder import PairScorer, exported_cross_encoder, pair_batches
from services.trainer.train.export.quantization import Int8Trial
from services.trainer.train.export.writer import write_checkpoint
from services.trainer.train.inputs import JobInputs, open_checkpoint
from services.trainer.train.loop import best_weights
from services.trainer.train.losses import regression
from services.transformer import load_transformer

Rankings = Sequence[NDArray[np.int64]]  # a list of ordinals for each query
REMEDY = "name a base_model such as BERT, or build the corpus with one"
FIRST = 50  # premises of an encoder's ranking that can become negatives
RERANKED = 20  # premises that the validation re-ranks
WEIGHT = 0.2  # of the score, added to the cosine in the validation
PAIRS = 128  # per call of the model
TOGETHER = 16  # pairs of a step that a CPU takes together, at least
PADDED = 32  # pairs that an exported model scores at once
GRADES = 100  # at most, of a distribution
POSITIVES = 2  # at most, drawn for a query in an epoch, where all are worth the same: a few have dozens


class GradeScorer(PairScorer):
    """A cross-encoder whose labels are grades, ascending. Its score is their expected value."""

    def __init__(self, model: nn.Module, grades: Sequence[float]) -> None:
        super().__init__(model)
        self.grades: Tensor
        self.register_buffer("grades", torch.tensor(grades, dtype=torch.float32))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Computes expected grades (batch,)."""
        return self.logits(input_ids, attention_mask, token_type_ids).softmax(dim=1) @ self.grades


class RegressionObjective:
    """The mean squared error; of a distribution over grades, the mean cross-entropy.

    A unit is a query with positives and negatives; an epoch draws some of both.
    """

    head: nn.Module | None = None

    def __init__(
        self,
        training_set: TrainingSet,
        negatives: Sequence[NDArray[np.int64]],
        text_of: Callable[[int], str],
        config: JobConfig,
        logits: Callable[[PairScorer, Sequence[Pair]], Tensor],
    ) -> None:
        """`negatives[n]` are ordinals that example n may draw; `logits` computes (pairs, labels) with a gradient."""
        self._examples, self._negatives = training_set.examples, negatives
        owners = [n for n, one in enumerate(self._examples) if len(one.positives) and len(negatives[n])]
        self.size, self.skipped = len(owners), len(self._examples) - len(owners)
        self._owners = np.array(owners, dtype=np.int64)
        lengths = np.array([len(example.query) for example in self._examples], dtype=np.int64)
        self._units = Units(self._owners, lengths, "QUERIES")
        self._text_of, self._config, self._logits = text_of, config, logits
        self._drawn: list[list[tuple[int, float]]] = []

    def batches(self, generator: np.random.Generator, batch_size: int) -> list[NDArray[np.int64]]:
        """Batches queries of similar lengths; draws the premises of the epoch, too."""
        batches = self._units.batches(generator, batch_size, self._config.items_per_epoch)
        self._drawn = [self._draw(generator, int(n)) for n in self._owners]
        return batches

    def _draw(self, generator: np.random.Generator, n: int) -> list[tuple[int, float]]:
        """Draws premises of an example, each with the score that it should get."""
        example, most = self._examples[n], self._config.hard_negatives
        graded = self._config.targets != "BINARY"
        places = generator.permutation(len(example.positives))[: most if graded else POSITIVES]
        targets = example.grades if graded else np.ones(len(example.positives))
        drawn = [(int(example.positives[place]), float(targets[place])) for place in places]
        return drawn + [(int(ordinal), 0.0) for ordinal in generator.permutation(self._negatives[n])[:most]]

    def loss(
        self, encoders: Encoders[PairScorer], units: NDArray[np.int64], whole: NDArray[np.int64] | None = None
    ) -> Tensor:
        """Computes the mean over the pairs of a batch."""
        pairs: list[Pair] = []
        wanted: list[float] = []
        for unit in units:
            query = self._examples[self._owners[unit]].query
            pairs += [(query, self._text_of(ordinal)) for ordinal, _ in self._drawn[unit]]
            wanted += [target for _, target in self._drawn[unit]]
        logits = self._logits(encoders.query, pairs)
        grades = encoders.query.grades if isinstance(encoders.query, GradeScorer) else None
        errors = regression(logits, torch.tensor(wanted, device=logits.device), grades)
        return errors.mean() if whole is None else errors.sum() / sum(len(self._drawn[unit]) for unit in whole)


class RerankingTask:
    """Trains a cross-encoder. The base version's rankings, or those of the index, are re-ranked."""

    def __init__(self, inputs: JobInputs) -> None:
        self.inputs = inputs
        self._start = Path(inputs.plan.base_model) if inputs.plan.base_model else inputs.pretrained.path
        # The tokenizer of pairs. Now, as a new model seeds torch, which must not happen between steps.
        self.batches = pair_batches(self._start, self._new_model())

    def encoders(self, kept: Path | None = None) -> Encoders[PairScorer]:
        """Loads the cross-encoder that training starts from, or the one that it has kept in a directory."""
        model = self._new_model()
        if kept is not None:
            model.load_state_dict(best_weights(kept))
        scorer = GradeScorer(model, self._grades) if self._grades else PairScorer(model)
        return Encoders(scorer.to(self.inputs.device))

    def objective(self) -> RegressionObjective:
        """Builds the regression on judged pairs; negatives are refused premises and those that encoders rank first.

        Raises FailedPrecondition without any negative.
        """
        inputs, config = self.inputs, self.inputs.plan.config
        texts = [*(premise.text for premise in inputs.generation.premises), *inputs.training_set.outside]
        objective = RegressionObjective(inputs.training_set, self._negatives(), texts.__getitem__, config, self._logits)
        if not objective.size:
            raise FailedPrecondition(
                "no query with a positive premise has a negative one; build a larger corpus, or sample with collect "
                "BOTH",
                reason="NO_NEGATIVES",
            )
        return objective

    def before(self) -> Report | None:
        """Measures the strict quality of the first ranking."""
        return self._first.report(self._first.ordinals) if self.inputs.validation else None

    def judged(self, encoders: Encoders[PairScorer]) -> tuple[Report | None, Int8Trial | None]:
        """Measures the strict quality of the first ranking, its first premises re-ranked by cosine and score.

        Returns the data of the int8 gate, too, None where int8 is off. Both are None without gold queries.
        """
        if not self.inputs.validation:
            return None, None
        report = self._reranked(outputs_by(encoders.query, self.batches, self._pairs, PAIRS))
        if not self.inputs.plan.means.int8:
            return report, None
        queries, threads = len(self.inputs.validation), torch.get_num_threads()
        before, map_of = report.strict.map, lambda found: self._reranked(found).strict.map
        return report, Int8Trial(self._pairs, queries, map_of, before, PADDED, threads)

    def served(self, version: str) -> Report:
        """Measures a published cross-encoder in float32, each pair cut as it is when served."""
        artifact = open_checkpoint(self.inputs.store, version)
        tokenizer, meta = Tokenizer.from_file(str(artifact.file("tokenizer.json"))), artifact.meta
        batches = Batches(tokenizer, meta["max_tokens"], meta["pad_id"], typed=True)
        model, threads = artifact.file("model.onnx"), torch.get_num_threads()
        return self._reranked(outputs_of(model, batches, self._pairs, together=PADDED, threads=threads))

    def write(self, encoders: Encoders[PairScorer], meta: dict[str, Any], *of_query: Any) -> dict[str, str]:
        """Writes the checkpoint, the `version`."""
        config: Any = encoders.query.model.config
        text = json.dumps({**config.to_dict(), "_name_or_path": ""}, indent=1)  # it would be a path of this machine
        model = exported_cross_encoder(encoders.query, self.batches, text)
        meta["lineage"]["weights_sha256"] = sha256_of(self._start / "model.safetensors")  # those that it began with
        return {"version": write_checkpoint(self.inputs.store, model, meta, *of_query).id}

    @property
    def rankings(self) -> str:
        """Names the rankings that are re-ranked; reports on others cannot be compared."""
        listed = json.dumps([ordinals.tolist() for ordinals in self._first.ordinals])
        return hashlib.sha256(listed.encode()).hexdigest() if self.inputs.candidates else self.inputs.base.id

    @cached_property
    def _pairs(self) -> list[Pair]:
        """The pairs of validation queries with their first premises."""
        return [
            (query.text, self.inputs.generation.premises[int(n)].text)
            for query, ordinals in zip(self.inputs.validation, self._first.ordinals, strict=True)
            for n in ordinals
        ]

    def _reranked(self, found: NDArray[np.float32]) -> Report:
        """Reports on the first premises in the order of the scores (pairs,) of `_pairs`."""
        ordinals, cosines = self._first.ordinals, self._first.cosines
        scores = np.split(found, np.cumsum([len(one) for one in ordinals])[:-1])
        if not self.inputs.candidates:
            scores = [cosine + WEIGHT * score for cosine, score in zip(cosines, scores, strict=True)]
        orders = [np.argsort(-score, kind="stable") for score in scores]
        return self._first.report([one[order] for one, order in zip(ordinals, orders, strict=True)])

    @cached_property
    def _first(self) -> FirstRankings:
        inputs = self.inputs
        standard = GoldStandard.of(inputs.validation, inputs.generation.premises.ordinal_by_text)
        texts, candidates = [query.text for query in inputs.validation], len(inputs.generation.premises)
        if inputs.candidates:
            ordinals = self._retrieved(texts)
            ranks = [ranks_in(gold, listed, UNRANKED) for gold, listed in zip(standard.kept, ordinals, strict=True)]
            return FirstRankings(standard, ordinals, (), ranks, candidates)
        queries, premises = inputs.frozen(inputs.base.id, texts, inputs.spec.query_prefix), inputs.generation.vectors
        whole = evaluate(inputs.validation, queries, premises, inputs.generation.premises.ordinal_by_text)
        listed, cosines = nearest(queries, premises, RERANKED, standard.own)
        return FirstRankings(standard, list(listed), list(cosines), whole.strict_ranks, candidates)

    def _negatives(self) -> list[NDArray[np.int64]]:
        """Lists each example's negatives: refused premises and those ranked first, without excluded ones."""
        inputs = self.inputs
        rankings = self._unjudged([example.query for example in inputs.training_set.examples])
        never = inputs.training_set.excluded.copy()
        known = (inputs.generation.premises.ordinal_by_text.get(text) for text in inputs.held_out)
        never[[ordinal for ordinal in known if ordinal is not None]] = True
        found = []
        for n, example in enumerate(inputs.training_set.examples):
            first = np.concatenate([example.refused[:0], *(ranking[n] for ranking in rankings)])
            first = np.setdiff1d(first[~never[first]], example.excluded)
            found.append(np.setdiff1d(np.union1d(first, example.refused), example.positives))
        return found

    def _unjudged(self, texts: Sequence[str]) -> list[Rankings]:
        """Returns rankings for each text whose premises may become negatives, as the configuration says."""
        inputs, kind = self.inputs, self.inputs.plan.config.negatives
        if kind == "NONE":
            return []
        if kind == "RANDOM":
            generator, rows = np.random.default_rng([inputs.plan.config.seed, 1]), len(inputs.generation.premises)
            return [[generator.choice(rows, min(rows, CANDIDATES), replace=False) for _ in texts]]
        if inputs.candidates:
            return [self._retrieved(texts)]
        versions = dict.fromkeys((inputs.base.id, inputs.generation.premise_version))  # mostly two
        encoded = (inputs.frozen(version, texts, inputs.spec.query_prefix) for version in versions)
        return [list(nearest(queries, inputs.generation.vectors, FIRST)[0]) for queries in encoded]

    def _retrieved(self, texts: Sequence[str]) -> Rankings:
        """Looks up the candidates of texts; none of a query without an explanation."""
        ordinal = self.inputs.generation.premises.ordinal_by_id
        listed = (self.inputs.candidates.get(text, ()) for text in texts)
        return [np.array([ordinal[premise_id] for premise_id in ids], dtype=np.int64) for ids in listed]

    @cached_property
    def _grades(self) -> list[float]:
        """The labels of a distribution over grades, ascending; none for other targets. Raises FailedPrecondition."""
        if self.inputs.plan.config.targets != "GRADE_DISTRIBUTION":
            return []
        grades = sorted({0.0, *(float(one) for example in self.inputs.training_set.examples for one in example.grades)})
        if len(grades) > GRADES:
            raise FailedPrecondition(
                f"the training data has {len(grades):,} different grades, 0 included; a distribution takes at most "
                f"{GRADES}: choose targets GRADES"
            )
        return grades

    def _new_model(self) -> nn.Module:
        """Puts the pre-trained transformer below a new head, the same for a seed. Raises FailedPrecondition."""
        from transformers import AutoConfig, AutoModelForSequenceClassification

        transformer: Any = load_transformer(self._start, attention="eager")
        kind = transformer.config.model_type
        classifier: Any = AutoModelForSequenceClassification
        names = [str(grade) for grade in self._grades] or ["LABEL_0"]  # as transformers calls a single one
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
        torch.manual_seed(self.inputs.plan.config.seed % 2**63)
        try:
            config = AutoConfig.from_pretrained(self._start, local_files_only=True, trust_remote_code=False, **labels)
            model: nn.Module = classifier.from_config(config, attn_implementation="eager", dtype=torch.float32)
            inner = getattr(model, str(model.base_model_prefix))
        except (ValueError, AttributeError) as error:
            raise FailedPrecondition(f"model type {kind} cannot become a cross-encoder; {REMEDY}") from error
        weights = {name: one for name, one in transformer.state_dict().items() if "pooler" not in name or one.any()}
        missing, unexpected = inner.load_state_dict(weights, strict=False)
        if other := [name for name in (*missing, *unexpected) if "pooler" not in name]:
            raise FailedPrecondition(
                f"{self._start} cannot become a cross-encoder: {other[0]} has no counterpart there; {REMEDY}"
            )
        return model

    def _logits(self, scorer: PairScorer, pairs: Sequence[Pair]) -> Tensor:
        """Computes logits (pairs, labels) with a gradient, in the job's precision.

        A CPU takes pairs of similar length together: it would spend a third of its time on padding. A GPU takes all.
        """
        [order] = by_length(characters(pairs), len(pairs))
        parts = np.array_split(order, 1 if self.inputs.device.type == "cuda" else max(1, len(pairs) // TOGETHER))
        with autocast(self.inputs.device, self.inputs.precision):
            inputs = (tensors_of(self.batches.inputs([pairs[n] for n in part]), self.inputs.device) for part in parts)
            rows = [scorer.logits(**one) for one in inputs]
        return torch.cat(rows)[np.argsort(order)].float()


@dataclass(frozen=True)
class FirstRankings:
    """The first premises of each validation query, ordinals and cosines, and its gold premises' strict ranks.

    Those that the index retrieved have no cosines. `candidates` is the number of all premises.
    """

    standard: GoldStandard
    ordinals: Rankings
    cosines: Sequence[NDArray[np.float32]]
    ranks: Sequence[Ranks]
    candidates: int

    def report(self, ordinals: Rankings) -> Report:
        """Reports on another order of the first premises; the others keep their ranks."""
        each = zip(self.standard.kept, ordinals, self.ranks, strict=True)
        return Report.of(self.standard, [ranks_in(*one) for one in each], None, candidates=self.candidates)
