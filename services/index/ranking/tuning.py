"""`aeenc tune-retrieval`: the weights of Retrieve that find most for queries that neither encoder nor prior has seen.

    folds ──► a job each ──► label `fold` ──► vectors of the held-out queries ──┐
          └─► explanations of the others ──► a prior each ──────────────────────┴─► OutOfFold ◄── optuna's weights
                                                                                       └─► features ──► their weights

The arithmetic is that of the ranker (fusion.py), over exact cosines, so that what is tuned is what is served. Weights
tuned on queries that the encoder was trained on would trust it too much. The first trials are the encoder alone and
PUBLISHED, so that the result is never worse than they on these queries.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray

from aeenc import Client
from aeenc.calls.encoding import Precision
from aeenc.errors import FailedPrecondition, InvalidArgument, NotFound
from aeenc.evaluation import UNRANKED, average_precision
from aeenc.evaluation.metrics import Ranks
from aeenc.trees import HELD_OUT, Dataset
from services.index.lexical.bm25 import LexicalIndex, best
from services.index.ranking.features import DEPTH, NAMES, VECTOR_NAMES, FirstWords, features_of, fit, order_by
from services.index.ranking.fusion import fuse_hits, rocchio_feedback
from services.index.ranking.prior import Prior, with_bonus
from services.index.values import Explanation, SearchHits

if TYPE_CHECKING:
    import optuna

POOL = 1000  # of the ranker
FEEDBACK = 5
TRAINED = "train"  # the split of a fold that its encoder learns from
LABEL = "fold"
PUBLISH_S = 120.0
LEXICAL_MOST, PRIOR_MOST = 0.5, 0.3
BLOCK = 256  # queries whose cosines are in memory together
FEW = 100  # queries; a difference between means over fewer is easily chance


TunedMode = Literal["hybrid", "dense"]


@dataclass(frozen=True)
class Weights:
    """The options of Retrieve that are tuned, each from 0 to 1; in mode dense, only the last."""

    lexical_weight: float = 0.0
    prior: float = 0.0
    negative_feedback: float = 0.0


PUBLISHED = Weights(0.15, 0.07, 0.15)  # chosen on EntailmentBank's dev (docs/experiments/trainer.md)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Queries with their gold premises as ordinals, vectors (n, dim) of an encoder and a prior that know neither."""

    texts: Sequence[str]
    gold: Sequence[Sequence[int]]
    vectors: NDArray[np.float32]
    prior: Prior

    def __iter__(self) -> Iterator[tuple[str, Sequence[int], NDArray[np.float32]]]:
        """Yields text, gold premises and vector of each query."""
        yield from zip(self.texts, self.gold, self.vectors, strict=True)


def drawn(folds: Sequence[HeldOut], most: int, seed: int) -> list[HeldOut]:
    """Draws at most so many queries of all folds; 0: all."""
    sizes = [len(fold.texts) for fold in folds]
    if not most or sum(sizes) <= most:
        return [*folds]
    chosen = np.sort(np.random.default_rng(seed).permutation(sum(sizes))[:most])
    found = []
    for fold, start in zip(folds, np.cumsum([0, *sizes]).tolist(), strict=False):
        rows = [n - start for n in chosen.tolist() if start <= n < start + len(fold.texts)]
        texts, gold = [fold.texts[n] for n in rows], [fold.gold[n] for n in rows]
        found.append(HeldOut(texts, gold, fold.vectors[rows], fold.prior))
    return found


@dataclass(frozen=True, eq=False)
class Example:
    """A query's ranking, the features of its first premises, and its gold premises."""

    hits: SearchHits
    features: NDArray[np.float64]
    gold: Sequence[int]


@dataclass(frozen=True, eq=False)
class LearnedOrder:
    """Weights by feature, and the ranking of each query by weights that its fold had no part in."""

    features: Mapping[str, float]
    rankings: Sequence[SearchHits]


class OutOfFold:
    """Ranks the premises of a corpus, with vectors (n, dim), for the held-out queries of all folds."""

    def __init__(self, texts: Sequence[str], premises: NDArray[np.float32], folds: Sequence[HeldOut]) -> None:
        self._premises, self._folds = premises, folds
        self._lexical = LexicalIndex.of(texts)
        self._ordinal = {text: n for n, text in enumerate(texts)}

    @property
    def queries(self) -> list[str]:
        """The texts of all queries, in the order of all results."""
        return [text for fold in self._folds for text in fold.texts]

    def value(self, weights: Weights) -> float:
        """Strict MAP over all queries."""
        return float(self.average_precisions(self.rankings(weights)).mean())

    def average_precisions(self, rankings: Iterable[SearchHits]) -> NDArray[np.float64]:
        """The average precision of each query in its ranking, strict: a query does not find its own text."""
        gold = [own for fold in self._folds for own in fold.gold]
        ranks = (_ranks(own, hits) for own, hits in zip(gold, rankings, strict=True))
        return np.array([average_precision(own) for own in ranks])

    def rankings(self, weights: Weights) -> Iterator[SearchHits]:
        """Yields the first POOL premises of each query, as Retrieve ranks them."""
        at = 0
        for fold in self._folds:
            for start in range(0, len(fold.texts), BLOCK):
                vectors = fold.vectors[start : start + BLOCK]
                rows = range(at + start, at + start + len(vectors))
                if weights.negative_feedback:
                    first = [hits.ordinals[:FEEDBACK] for hits in self._ranked(rows, vectors, weights)]
                    turned = [self._premises[own] for own in first]
                    vectors = rocchio_feedback(vectors, turned, weights.negative_feedback)
                yield from self._ranked(rows, vectors, weights)
            at += len(fold.texts)

    def learn(self, weights: Weights, names: Sequence[str] = NAMES) -> LearnedOrder:
        """Fits the weights of features on all queries, and ranks those of each fold by weights fitted on the others."""
        examples = list(self.examples(weights, with_words=not set(names) <= set(VECTOR_NAMES)))
        least = min((len(one.features) for one in examples), default=0)  # corpora of fewer premises than DEPTH
        found = [one.features[:least] for one in examples]
        gold = [np.isin(one.hits.ordinals[:least], one.gold) for one in examples]
        folds = np.repeat(np.arange(len(self._folds)), [len(fold.texts) for fold in self._folds])
        rankings = [one.hits for one in examples]
        for fold in range(len(self._folds)):
            others = np.flatnonzero(folds != fold).tolist()
            learned = fit([found[n] for n in others], [gold[n] for n in others], names)
            for n in np.flatnonzero(folds == fold).tolist():
                rankings[n] = order_by(examples[n].hits, examples[n].features, learned, POOL)
        return LearnedOrder(fit(found, gold, names), rankings)

    def examples(self, weights: Weights, *, with_words: bool = True) -> Iterator[Example]:
        """Yields the ranking of each query with the features of its first premises."""
        asked = [(text, own, vector) for fold in self._folds for text, own, vector in fold]
        for (text, gold, vector), words, hits in zip(asked, self._by_words, self.rankings(weights), strict=True):
            allowed = None
            if words.own >= 0:
                allowed = np.ones(len(self._premises), dtype=bool)
                allowed[words.own] = False
            first = hits.first(DEPTH)
            near = self._premises[first.ordinals]
            own_words = None
            if with_words:
                own_words = FirstWords.of(self._lexical.terms(text), first, self._lexical, allowed)
            found = features_of(first, own_words, vector, near)
            yield Example(hits, found, gold)

    def _ranked(self, rows: range, vectors: NDArray[np.float32], weights: Weights) -> Iterator[SearchHits]:
        cosines = vectors @ self._premises.T
        for n, row in enumerate(rows):
            words = self._by_words[row]
            mine = cosines[n]
            near = _nearest(mine, words.own)
            if weights.lexical_weight:
                scores = np.zeros(len(mine), np.float32)
                scores[words.hits.ordinals] = words.hits.scores
                by_words = words.hits.first(POOL)
                near = fuse_hits(near, by_words, scores, mine.__getitem__, weights.lexical_weight, "min_max", POOL)
            if weights.prior:
                bonus = np.zeros(len(mine), np.float32)
                bonus[words.explained] = words.bonus
                near = with_bonus(near, bonus[near.ordinals], weights.prior, POOL)
            yield near

    @cached_property
    def _by_words(self) -> list[_Words]:
        """What no weight changes, once for all trials."""
        found, everything = [], np.arange(len(self._premises))
        for fold in self._folds:
            for text in fold.texts:
                allowed, own = None, self._ordinal.get(text, -1)
                if own >= 0:
                    allowed = np.ones(len(self._premises), dtype=bool)
                    allowed[own] = False
                hits = best(self._lexical.scores(self._lexical.terms(text)), len(self._premises), allowed)
                bonus = fold.prior.bonus(text, everything)
                explained = np.flatnonzero(bonus)
                found.append(_Words(own, hits, explained, bonus[explained]))
        return found


@dataclass(frozen=True, eq=False)
class _Words:
    """A query's own ordinal (-1: it is no premise), all its premises by words, and those with a bonus of the prior."""

    own: int
    hits: SearchHits
    explained: NDArray[np.int64]
    bonus: NDArray[np.float32]


def _nearest(cosines: NDArray[np.float32], own: int) -> SearchHits:
    """The POOL premises of highest cosine, without the query's own text."""
    k = min(POOL + 1, len(cosines))
    found = np.argpartition(-cosines, k - 1)[:k]
    return SearchHits.best(found[found != own], cosines[found[found != own]], POOL)


def _ranks(gold: Sequence[int], hits: SearchHits) -> Ranks:
    places = {ordinal: rank for rank, ordinal in enumerate(hits.ordinals.tolist(), start=1)}
    return np.array([places.get(one, UNRANKED) for one in gold], dtype=np.int64)


@dataclass(frozen=True)
class TunedWeights:
    """The best weights, their value, and those of the first trials: the encoder alone, and PUBLISHED."""

    weights: Weights
    value: float
    alone: float
    published: float


def published(lexical: float) -> Weights:
    """PUBLISHED, as far as `tune` may try it with the same `lexical`."""
    if not lexical:
        return replace(PUBLISHED, lexical_weight=0.0, prior=0.0)
    return replace(PUBLISHED, lexical_weight=min(PUBLISHED.lexical_weight, lexical))


def tune(value: Callable[[Weights], float], *, trials: int, seed: int, lexical: float = LEXICAL_MOST) -> TunedWeights:
    """Searches for the best weights by optuna's tree-structured Parzen estimator. Equal seeds give equal results.

    `lexical` is the largest share of BM25 that is tried; 0: mode dense, without the prior, which also works by words.
    """
    import optuna

    prior = PRIOR_MOST if lexical else 0.0

    def propose(trial: optuna.Trial) -> float:
        return value(
            Weights(
                lexical_weight=trial.suggest_float("lexical_weight", 0.0, lexical, step=0.01),
                prior=trial.suggest_float("prior", 0.0, prior, step=0.01),
                negative_feedback=trial.suggest_float("negative_feedback", 0.0, 0.3, step=0.01),
            )
        )

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for known in (Weights(), published(lexical)):
        study.enqueue_trial(asdict(known))
    study.optimize(propose, n_trials=trials)
    first = [float(trial.value or 0.0) for trial in study.trials[:2]]
    return TunedWeights(Weights(**study.best_params), float(study.best_value), *first)


def encoded(client: Client, texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
    """Encodes texts (n, dim): queries in float32, premises as their space does; cuts what is too long."""
    precision: Precision | None = None if options.get("role") == "premise" else "float32"
    parts = client.encoder.encode_all(texts, truncate=True, precision=precision, **options)
    return np.concatenate([part.vectors for part in parts])


def held_out_of(client: Client, fold: Dataset, texts: Sequence[str], version: str) -> HeldOut:
    """The held-out queries of a fold, encoded by a version that has not seen them. Points label `fold` at it.

    `texts` are the corpus's in order. Raises FailedPrecondition where the encoder does not serve the version.
    """
    published = client.registry.publish(version, label=LABEL, wait_s=PUBLISH_S, force=True)
    if not published.complete:
        reasons = ", ".join(one.reason for one in published.rollouts if one.reason) or "it did not answer in time"
        raise FailedPrecondition(f"the encoder does not serve {version} as label {LABEL!r}: {reasons}")
    ordinal = {text: n for n, text in enumerate(texts)}
    strict = [
        (query.text, [ordinal[one] for one in query.gold if one != query.text]) for query in fold.queries(HELD_OUT)
    ]
    asked = [(text, gold) for text, gold in strict if gold]
    vectors = encoded(client, [text for text, _ in asked], version=version)
    learned = [Explanation(query.text, query.gold) for query in fold.queries(TRAINED)]
    prior = Prior.over(learned, ordinal)
    return HeldOut([text for text, _ in asked], [gold for _, gold in asked], vectors, prior)


def train_without(client: Client, name: str, fold: Dataset, recipe: Mapping[str, Any]) -> str:
    """The checkpoint of the job that learned a fold's other trees; it is trained once for each recipe.

    `name` is the fold's among the trainer's data sets. Raises FailedPrecondition for a job that has failed.
    """
    from aeenc.cli.corpus import ensure_corpus

    corpus = ensure_corpus(client, fold)
    told = json.dumps([corpus, name, str(fold.directory.resolve()), dict(recipe)], sort_keys=True)
    key = f"tune-{name}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    job = client.trainer.start_job(corpus=corpus, data_sets=[name], split=TRAINED, idempotency_key=key, **recipe)
    if job.state.name in {"CANCELLED", "FAILED"}:
        job = client.trainer.resume(job.id)
    job = client.trainer.wait(job.id)
    if job.state.name != "SUCCEEDED":
        raise FailedPrecondition(f"job {job.id} of {name} has ended as {job.state.name}: {job.error}; run this again")
    return str(job.version)


@dataclass(frozen=True)
class Way:
    """A way to rank: its name for people, its strict MAP over all queries, its options as a shell takes them."""

    name: str
    map: float
    options: str


def best_way(ways: Mapping[str, Way]) -> str:
    """The key of the way with the highest MAP; of equal ones the first, which should do least."""
    return max(ways, key=lambda key: ways[key].map)


def options_of(mode: TunedMode, weights: Weights, features: Mapping[str, float] | None = None) -> str:
    """The options of `aeenc retrieve` and `aeenc evaluate`, without those that have their default."""
    words = ["--mode", mode]
    for name, value in asdict(weights).items():
        if value or (mode, name) == ("hybrid", "lexical_weight"):  # whose default is the index's
            words += [f"--{name.replace('_', '-')}", f"{value:g}"]
    if features:
        words += ["--features", json.dumps({name: round(weight, 4) for name, weight in features.items()})]
    return shlex.join(words)


def ways_of(measured: OutOfFold, mode: TunedMode, weights: Weights, learned: LearnedOrder) -> dict[str, Way]:
    """Measures the encoder alone, PUBLISHED, the tuned weights, and these with features."""
    known = published(LEXICAL_MOST if mode == "hybrid" else 0.0)
    ordered = float(measured.average_precisions(learned.rankings).mean())
    return {
        "alone": Way("the encoder alone", measured.value(Weights()), options_of("dense", Weights())),
        "published": Way("the weights chosen on EntailmentBank", measured.value(known), options_of(mode, known)),
        "tuned": Way("tuned weights", measured.value(weights), options_of(mode, weights)),
        "with features": Way("tuned weights and features", ordered, options_of(mode, weights, learned.features)),
    }


def command(
    context: typer.Context,
    folds: Annotated[Path, typer.Argument(help="What `aeenc export folds` wrote.")],
    trials: Annotated[int, typer.Option(min=3, help="Weights to try; the first are the encoder's alone.")] = 60,
    epochs: Annotated[int, typer.Option(min=1, help="Of each fold's job.")] = 8,
    batch_size: Annotated[int, typer.Option(min=1, help="Of each fold's job.")] = 64,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of each fold's job; 0: the loss's default.")] = 0.0,
    initial_share: Annotated[float, typer.Option(min=0, max=1, help="Of each fold's job.")] = 0.05,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Train nothing: tune for the pre-trained encoder.")
    ] = False,
    mode: Annotated[TunedMode, typer.Option(help="Of Retrieve; dense needs no words.")] = "hybrid",
    queries: Annotated[int, typer.Option(min=0, help="At most so many queries for the trials, drawn; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
) -> None:
    """Trains an encoder without each fold and tunes the weights of Retrieve on the queries that it has not seen.

    The trainer has to know the folds as data sets (`aeenc export folds` prints the setting). What was trained is found
    again by the next call.
    """
    from importlib.util import find_spec

    from aeenc.cli.output import output_of, table
    from aeenc.cli.targets import client

    if find_spec("optuna") is None:
        raise FailedPrecondition("this needs optuna; install aeenc-services with the extra index-tune")
    directories = sorted(path.parents[2] for path in folds.glob(f"*/dataset/task_1/{HELD_OUT}.jsonl"))
    if len(directories) < 2:
        raise InvalidArgument(
            f"{folds} has no folds, which are directories with dataset/task_1/{HELD_OUT}.jsonl; write them by "
            "`aeenc export folds --data DIR --to FOLDS`, and give FOLDS"
        )
    recipe = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "initial_share": initial_share,
        "seed": seed,
    }
    out = output_of(context)
    data = {path.name: Dataset.load(path) for path in directories}
    texts = [one.text for one in next(iter(data.values())).candidates()]
    held_out, versions = [], {}
    with client(context) as connected, out.progress("folds", "folds") as report:
        try:
            for n, (name, fold) in enumerate(data.items(), start=1):
                version = pretrained_of(connected) if pretrained else train_without(connected, name, fold, recipe)
                held_out.append(held_out_of(connected, fold, texts, version))
                versions[name] = version
                report(n, len(data), name)
        finally:
            with suppress(NotFound):  # nothing has been encoded
                connected.registry.delete_label(LABEL)
        premises = encoded(connected, texts, role="premise", space_id=connected.trainer.info().default_space_id)
    measured = OutOfFold(texts, premises, held_out)
    lexical, names = (0.0, VECTOR_NAMES) if mode == "dense" else (LEXICAL_MOST, NAMES)
    tried = OutOfFold(texts, premises, drawn(held_out, queries, seed)).value
    found = tune(tried, trials=trials, seed=seed, lexical=lexical)
    learned = measured.learn(found.weights, names)
    ways, asked = ways_of(measured, mode, found.weights, learned), len(measured.queries)
    best = best_way(ways)
    result = {
        "queries": asked,
        "weights": asdict(found.weights),
        "features": learned.features,
        "map": {key: way.map for key, way in ways.items()},
        "best": best,
        "options": ways[best].options,
        "versions": versions,
    }
    rows = [(way.name, f"{way.map:.4f}") for way in ways.values()]
    shown = table([f"{asked:,} held-out queries, ranked by", "strict MAP"], rows, right=1)
    out.result(result, shown, f"Best: {ways[best].name}. Its options of `aeenc retrieve` and `aeenc evaluate`:")
    if not out.as_json:
        typer.echo(ways[best].options)  # in one line: it is to be copied
    if asked < FEW:
        out.note(f"{asked} queries are few: the differences may be chance; {FEW} or more say what is better")
    if not pretrained:
        out.note(
            "kept for the next call: a job, a checkpoint and a corpus of each fold. `aeenc jobs` lists the jobs with "
            "their versions; `aeenc jobs delete JOB` and `aeenc checkpoints delete VERSION` remove these two"
        )


def pretrained_of(client: Client) -> str:
    """The version of the space's pre-trained encoder."""
    space_id = client.trainer.info().default_space_id
    found = [one for one in client.trainer.list_checkpoints() if one.pretrained and one.space_id == space_id]
    return str(found[0].version)


def register(app: typer.Typer) -> None:
    """Adds the command. Called through the entry-point group `aeenc.commands`."""
    app.command("tune-retrieval")(command)
