"""Inputs of a job that trains a cross-encoder: the rankings that it re-ranks, and their quality.

Training starts from the space's pre-trained encoder, whose transformer it keeps and whose pooling a new head replaces
(Nogueira and Cho 2019, "Passage re-ranking with BERT"; regression as in the TextGraphs shared tasks on explanations).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from aeenc.errors import FailedPrecondition, InvalidArgument
from aeenc.evaluation import UNRANKED
from services.corpus.arrays import exact_scores
from services.store.artifacts import Artifact
from services.trainer.evaluation.protocol import GoldStandard, Ranks, Report
from services.trainer.evaluation.ranking import CLOSE, Matrix, gold_ranks
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.training_set import CANDIDATES, TrainingSet
from services.trainer.train.data import Units
from services.trainer.train.encoder import Encoders, autocast
from services.trainer.train.export.cross_encoder import (
    Pair,
    PairBatches,
    PairScorer,
    PairTrial,
    pair_batches,
    scores_of,
)
from services.trainer.train.inputs import JobInputs, open_checkpoint
from services.trainer.train.loop import BEST
from services.trainer.train.losses import regression
from services.transformer import load_transformer

NONE = -1  # no premise
FIRST = 50  # premises of an encoder's ranking that can become negatives
RERANKED = 20  # premises that the validation re-ranks
WEIGHT = 0.2  # of the score, added to the cosine in the validation
PAIRS = 128  # per call of the model
TOGETHER = 16  # pairs of a step that a CPU takes together, at least
QUERIES = 128  # per block of scores
GRADES = 100  # at most, of a distribution
POSITIVES = 2  # at most, drawn for a query in an epoch, where all are worth the same: a few have dozens


class TrainedScorer(PairScorer):
    """A cross-encoder in training. Its `transformer`, whose weights the loop keeps, includes the head."""

    @property
    def transformer(self) -> nn.Module:
        """The whole model."""
        return self.model


class GradeScorer(TrainedScorer):
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
        batches: PairBatches,
        config: JobConfig,
        logits: Callable[[TrainedScorer, Sequence[Pair]], Tensor],
    ) -> None:
        """`negatives[n]` are ordinals that example n may draw; `logits` computes (pairs, labels) with a gradient."""
        self._examples, self._negatives = training_set.examples, negatives
        owners = [n for n, one in enumerate(self._examples) if len(one.positives) and len(negatives[n])]
        self.size, self.skipped = len(owners), len(self._examples) - len(owners)
        self._owners = np.array(owners, dtype=np.int64)
        lengths = np.array([len(example.query) for example in self._examples], dtype=np.int64)
        self._units = Units(self._owners, lengths, "QUERIES")
        self._text_of, self._batches, self._config, self._logits = text_of, batches, config, logits
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
        self, encoders: Encoders[TrainedScorer], units: NDArray[np.int64], whole: NDArray[np.int64] | None = None
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


class RerankingInputs(JobInputs):
    """A job's inputs in mode CROSS_ENCODER. `base` is the encoder whose rankings are re-ranked."""

    @cached_property
    def pair_batches(self) -> PairBatches:
        """The tokenizer of pairs."""
        return pair_batches(self._begun_with.path, self._new_model())

    def encoders(self, kept: Path | None = None) -> Encoders[TrainedScorer]:
        """Loads the cross-encoder that training starts from, or the one that it has kept in a directory."""
        return Encoders(self.scorer(kept))

    def scorer(self, kept: Path | None = None) -> TrainedScorer:
        """Loads the same cross-encoder alone."""
        model = self._new_model()
        if kept is not None:
            model.load_state_dict(load_file(kept / BEST))
        scorer = GradeScorer(model, self._grades) if self._grades else TrainedScorer(model)
        return scorer.to(self.device)

    def objective(self) -> RegressionObjective:
        """Builds the regression on judged pairs; negatives are refused premises and those that encoders rank first.

        Raises InvalidArgument for another loss, FailedPrecondition without any negative.
        """
        if conflict := self.plan.loss.conflict(self.plan.config.mode, self.plan.config.loss_name):
            raise InvalidArgument.field("config.loss", conflict)
        texts = [*(premise.text for premise in self.generation.premises), *self.training_set.outside]
        objective = RegressionObjective(
            self.training_set, self._negatives(), texts.__getitem__, self.pair_batches, self.plan.config, self._logits
        )
        if not objective.size:
            raise FailedPrecondition(
                "no query with a positive premise has a negative one; build a larger corpus, or sample with collect "
                "BOTH",
                reason="NO_NEGATIVES",
            )
        return objective

    def evaluate(self, encoders: Encoders[TrainedScorer], corpus: Matrix | None = None) -> Report | None:
        """Measures the strict quality of the first ranking, its first premises re-ranked by cosine and score."""
        if not self.validation:
            return None
        del corpus  # always the generation's
        return self._reranked(self._scored(encoders.query, self._pairs))

    def pair_trial(self, after: Report | None) -> PairTrial | None:
        """Returns the data of the int8 gate, `after` by fp32; None if int8 is off or there are no gold queries."""
        if not (self.plan.means.int8 and after):
            return None
        return PairTrial(
            self._pairs, len(self.validation), after.strict.map, lambda scores: self._reranked(scores).strict.map
        )

    @cached_property
    def _pairs(self) -> list[Pair]:
        """The pairs of validation queries with their first premises."""
        return [
            (query.text, self.generation.premises[int(n)].text)
            for query, ordinals in zip(self.validation, self._first.ordinals, strict=True)
            for n in ordinals[ordinals != NONE]
        ]

    def _reranked(self, found: NDArray[np.float32]) -> Report:
        """Reports on the first premises in the order of the scores (pairs,) of `_pairs`."""
        first = self._first
        scores = np.full(first.ordinals.shape, -np.inf, dtype=np.float32)
        scores[first.ordinals != NONE] = found
        weighted = scores if self.candidates else first.cosines + WEIGHT * scores
        order = np.argsort(-weighted, axis=1, kind="stable")
        reranked = np.take_along_axis(first.ordinals, order, axis=1)
        return first.report(reranked, len(self.generation.premises))

    @property
    def rankings(self) -> str:
        """Names the rankings that are re-ranked; reports on others cannot be compared."""
        return hashlib.sha256(self._first.ordinals.tobytes()).hexdigest() if self.candidates else self.base.id

    def _served(self, version: str) -> Report:
        """Measures a published cross-encoder as `evaluate` does."""
        return self._reranked(scores_of(open_checkpoint(self.store, version), self._pairs))

    @property
    def before(self) -> Report | None:
        """The strict quality of the first ranking."""
        return self._first.report(self._first.ordinals, len(self.generation.premises)) if self.validation else None

    @cached_property
    def _first(self) -> FirstRankings:
        standard = GoldStandard.of(self.validation, self.generation.ordinal_by_text)
        texts = [query.text for query in self.validation]
        if self.candidates:
            ordinals = self._retrieved(texts)
            return FirstRankings(
                standard, ordinals, np.zeros(ordinals.shape, np.float32), _ranks_in(standard, ordinals)
            )
        queries = self._frozen(self.base.id, texts, self.spec.query_prefix)
        premises = self.generation.float32()
        ordinals, cosines = first_of(queries, premises, RERANKED, standard.own)
        return FirstRankings(standard, ordinals, cosines, gold_ranks(queries, premises, standard.kept, standard.own))

    def _negatives(self) -> list[NDArray[np.int64]]:
        """Lists each example's negatives: refused premises and those ranked first, without excluded ones."""
        rankings = self._unjudged([example.query for example in self.training_set.examples])
        never = self.training_set.excluded.copy()
        for text in self.held_out:
            if (ordinal := self.generation.ordinal_by_text.get(text)) is not None:
                never[ordinal] = True
        found = []
        for n, example in enumerate(self.training_set.examples):
            first = np.unique(np.concatenate([ranking[n] for ranking in rankings]))
            first = first[first != NONE]
            first = np.setdiff1d(first[~never[first]], example.excluded)
            found.append(np.setdiff1d(np.union1d(first, example.refused), example.positives))
        return found

    def _unjudged(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Returns rankings (texts, any) whose premises may become negatives, as the configuration says."""
        kind, rows = self.plan.config.negatives, len(self.generation.premises)
        if kind == "NONE":
            return [np.full((len(texts), 1), NONE, dtype=np.int64)]
        if kind == "RANDOM":
            generator = np.random.default_rng([self.plan.config.seed, 1])
            return [np.array([generator.permutation(rows)[:CANDIDATES] for _ in texts], dtype=np.int64)]
        if self.candidates:
            return [self._retrieved(texts)]
        premises = self.generation.float32()
        versions = dict.fromkeys((self.base.id, self._begun_with.id))  # mostly two
        encoded = (self._frozen(version, texts, self.spec.query_prefix) for version in versions)
        return [first_of(queries, premises, FIRST)[0] for queries in encoded]

    def _retrieved(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Looks up the candidates of texts: ordinals (texts, CANDIDATES), NONE behind the end of a shorter list."""
        ordinal = {premise.id: n for n, premise in enumerate(self.generation.premises)}
        found = np.full((len(texts), CANDIDATES), NONE, dtype=np.int64)
        for row, text in zip(found, texts, strict=True):
            ids = self.candidates.get(text, ())  # none for a query without an explanation
            row[: len(ids)] = [ordinal[premise_id] for premise_id in ids]
        return found

    @cached_property
    def _grades(self) -> list[float]:
        """The labels of a distribution over grades, ascending; none for other targets. Raises FailedPrecondition."""
        if self.plan.config.targets != "GRADE_DISTRIBUTION":
            return []
        grades = sorted({0.0, *(float(one) for example in self.training_set.examples for one in example.grades)})
        if len(grades) > GRADES:
            raise FailedPrecondition(
                f"the training data has {len(grades):,} different grades, 0 included; a distribution takes at most "
                f"{GRADES}: choose targets GRADES"
            )
        return grades

    @property
    def _begun_with(self) -> Artifact:
        return open_checkpoint(self.store, self.generation.premise_version)

    def _new_model(self) -> nn.Module:
        """Puts the pre-trained transformer below a new head, the same for a seed. Raises FailedPrecondition."""
        from transformers import AutoConfig, AutoModelForSequenceClassification

        directory = self._begun_with.path
        transformer: Any = load_transformer(directory, attention="eager")
        kind = transformer.config.model_type
        classifier: Any = AutoModelForSequenceClassification
        names = [str(grade) for grade in self._grades] or ["LABEL_0"]  # as transformers calls a single one
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
        torch.manual_seed(self.plan.config.seed % 2**63)
        try:
            config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False, **labels)
            model: nn.Module = classifier.from_config(config, attn_implementation="eager", dtype=torch.float32)
            inner = getattr(model, str(model.base_model_prefix))
        except (ValueError, AttributeError) as error:
            raise FailedPrecondition(
                f"model type {kind} cannot become a cross-encoder; build the corpus with a base model such as BERT"
            ) from error
        weights = {name: one for name, one in transformer.state_dict().items() if "pooler" not in name or one.any()}
        missing, unexpected = inner.load_state_dict(weights, strict=False)
        if other := [name for name in (*missing, *unexpected) if "pooler" not in name]:
            raise FailedPrecondition(
                f"the pre-trained encoder cannot become a cross-encoder: {other[0]} has no counterpart there; "
                "build the corpus with a base model such as BERT"
            )
        return model

    def _logits(self, scorer: TrainedScorer, pairs: Sequence[Pair]) -> Tensor:
        """Computes logits (pairs, labels) with a gradient, in the job's precision.

        A CPU takes pairs of similar length together: it would spend a third of its time on padding. A GPU takes all.
        """
        order = sorted(range(len(pairs)), key=lambda n: sum(map(len, pairs[n])))
        parts = np.array_split(order, 1 if self.device.type == "cuda" else max(1, len(pairs) // TOGETHER))
        with autocast(self.device, self.precision):
            rows = [scorer.logits(**self._tensors([pairs[n] for n in part])) for part in parts]
        return torch.cat(rows)[np.argsort(order)].float()

    def _tensors(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        return {name: one.to(self.device) for name, one in self.pair_batches.tensors(pairs).items()}

    @torch.inference_mode()
    def _scored(self, scorer: TrainedScorer, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """Scores pairs (pairs,) as served, in float32 and without dropout; pairs of similar length together."""
        training = scorer.training
        scorer.eval()
        order = sorted(range(len(pairs)), key=lambda n: sum(map(len, pairs[n])))
        scores = np.empty(len(pairs), dtype=np.float32)
        for start in range(0, len(order), PAIRS):
            part = order[start : start + PAIRS]
            scores[part] = scorer(**self._tensors([pairs[n] for n in part])).cpu().numpy()
        scorer.train(training)
        return scores


class FirstRankings:
    """The first premises of each validation query, ordinals and cosines (q, k), and its gold premises' strict ranks."""

    def __init__(
        self, standard: GoldStandard, ordinals: NDArray[np.int64], cosines: NDArray[np.float32], ranks: Sequence[Ranks]
    ) -> None:
        self.ordinals, self.cosines = ordinals, cosines
        self._standard, self._ranks = standard, ranks

    def report(self, ordinals: NDArray[np.int64], candidates: int) -> Report:
        """Reports on another order of the first premises; the others keep their ranks."""
        strict = []
        if not ordinals.shape[1]:
            return Report.of(self._standard, self._ranks, None, candidates=candidates)
        for gold, ranks, own in zip(self._standard.kept, self._ranks, ordinals, strict=True):
            at = own[None, :] == gold[:, None]  # (gold, k)
            strict.append(np.where(at.any(axis=1), at.argmax(axis=1) + 1, ranks))
        return Report.of(self._standard, strict, None, candidates=candidates)


def _ranks_in(standard: GoldStandard, ordinals: NDArray[np.int64]) -> list[Ranks]:
    """Ranks gold premises in lists of ordinals; UNRANKED where one lacks it."""
    ranks = []
    for gold, own in zip(standard.kept, ordinals, strict=True):
        at = own[None, :] == gold[:, None]
        ranks.append(np.where(at.any(axis=1), at.argmax(axis=1) + 1, UNRANKED))
    return ranks


def first_of(
    queries: NDArray[np.float32],
    premises: NDArray[np.float32],
    k: int,
    dropped: Sequence[int | None] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Finds ordinals and cosines (q, k), best first, of the premises nearest to each query, without the dropped one.

    Ties go to the premise inserted first, as in `gold_ranks`. k is at most the number of premises.
    """
    k = min(k, len(premises) - (dropped is not None))
    ordinals = np.empty((len(queries), k), dtype=np.int64)
    cosines = np.empty((len(queries), k), dtype=np.float32)
    for start in range(0, len(queries) if k else 0, QUERIES):
        scores = queries[start : start + QUERIES] @ premises.T
        for row, own in zip(scores, range(start, start + len(scores)), strict=True):
            if dropped is not None and (ordinal := dropped[own]) is not None:
                row[ordinal] = -np.inf
            least = np.partition(row, len(row) - k)[len(row) - k]
            near = np.flatnonzero(row >= least - CLOSE)  # includes all that BLAS may have misordered
            exact = exact_scores(premises[near], queries[own].astype(np.float64))
            exact[np.isneginf(row[near])] = -np.inf
            best = np.lexsort((near, -exact))[:k]
            ordinals[own], cosines[own] = near[best], exact[best]
    return ordinals, cosines
