"""`aeenc tune-retrieval`: the weights of Retrieve that find most for queries that neither encoder nor prior has seen.

    folds ──► a job each ──► label `fold` ──► vectors of the held-out queries ──┐
          └─► explanations of the others ──► a prior each ──────────────────────┴─► OutOfFold ◄── optuna's weights
                                                                                       └─► features ──► their weights
    folds ──► a cross-encoder each ──► scores of the first premises ──► its weight

Weights tuned on queries that the encoder was trained on would trust it too much. The first trials are the encoder alone
and PUBLISHED, so that the result is never worse than they on these queries.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray

from aeenc import Client
from aeenc.calls.encoding import Precision
from aeenc.errors import FailedPrecondition, InvalidArgument, NotFound
from aeenc.evaluation import gold_of, strict_gold
from aeenc.trees import HELD_OUT, Dataset
from services.index.ranking.fusion import Prior
from services.index.values import FEATURES, VECTOR_FEATURES, WIDE_FEATURES, Explanation, SearchHits
from services.store.registry_rows import CROSS_ENCODERS
from services.tuning.out_of_fold import RERANKED, HeldOut, LearnedOrder, OutOfFold, Weights, drawn, reranked
from services.tuning.words import check_installed, searched

if TYPE_CHECKING:
    import optuna

TRAINED = "train"  # the split of a fold that its encoder learns from
LABEL = "fold"
PUBLISH_S = 120.0
LEXICAL_MOST, PRIOR_MOST = 0.5, 0.3
RERANK_WEIGHTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)
AT_ONCE = 8  # calls of Score
FEW = 100  # queries; a difference between means over fewer is easily chance
TunedMode = Literal["hybrid", "dense"]
PUBLISHED = Weights(0.15, 0.07, 0.15)  # chosen on EntailmentBank's dev (docs/experiments/trainer.md)


def published(mode: TunedMode) -> Weights:
    """PUBLISHED, as far as a mode has it: dense has no BM25, and not the prior, which also works by words."""
    return PUBLISHED if mode == "hybrid" else replace(PUBLISHED, lexical_weight=0.0, prior=0.0)


def tune(value: Callable[[Weights], float], *, trials: int, seed: int, mode: TunedMode = "hybrid") -> Weights:
    """Searches for the best weights, none worse than the encoder alone or PUBLISHED. Equal seeds give equal results."""
    lexical, prior = (LEXICAL_MOST, PRIOR_MOST) if mode == "hybrid" else (0.0, 0.0)

    def propose(trial: optuna.Trial) -> float:
        return value(
            Weights(
                lexical_weight=trial.suggest_float("lexical_weight", 0.0, lexical, step=0.01),
                prior=trial.suggest_float("prior", 0.0, prior, step=0.01),
                negative_feedback=trial.suggest_float("negative_feedback", 0.0, 0.3, step=0.01),
            )
        )

    study = searched(propose, [asdict(known) for known in (Weights(), published(mode))], trials, seed)
    return Weights(**study.best_params)


def encoded(client: Client, texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
    """Encodes texts (n, dim): queries in float32, premises as their space does; cuts what is too long."""
    precision: Precision | None = None if options.get("role") == "premise" else "float32"
    parts = client.encoder.encode_all(texts, truncate=True, precision=precision, **options)
    return np.concatenate([part.vectors for part in parts])


def serve_fold(client: Client, version: str) -> None:
    """Points label `fold` at a version. Raises FailedPrecondition where the encoder does not serve it."""
    published = client.registry.publish(version, label=LABEL, wait_s=PUBLISH_S, force=True)
    if not published.complete:
        reasons = ", ".join(one.reason for one in published.rollouts if one.reason) or "it did not answer in time"
        raise FailedPrecondition(f"the encoder does not serve {version} as label {LABEL!r}: {reasons}")


def held_out_of(client: Client, fold: Dataset, texts: Sequence[str], version: str) -> HeldOut:
    """The held-out queries of a fold, encoded by a version that has not seen them. Points label `fold` at it.

    `texts` are the corpus's in order. Raises FailedPrecondition where the encoder does not serve the version.
    """
    serve_fold(client, version)
    ordinal = {text: n for n, text in enumerate(texts)}
    asked = list(strict_gold(gold_of(fold, HELD_OUT)))
    queries = [text for text, _ in asked]
    gold = [[ordinal[one] for one in premises] for _, premises in asked]
    learned = [Explanation(query.text, query.gold) for query in fold.queries(TRAINED)]
    return HeldOut(queries, gold, encoded(client, queries, version=version), Prior.over(learned, ordinal))


def pair_scores(
    client: Client, queries: Sequence[str], rankings: Sequence[SearchHits], texts: Sequence[str], version: str
) -> list[NDArray[np.float32]]:
    """Scores the first RERANKED premises of each query by a cross-encoder. Points label `fold` of its space at it.

    Raises FailedPrecondition where the encoder does not serve it.
    """
    serve_fold(client, version)

    def scored(query: str, hits: SearchHits) -> NDArray[np.float32]:
        first = [texts[n] for n in hits.ordinals[:RERANKED].tolist()]
        return np.asarray(client.encoder.score(query, first, version=version, truncate=True).scores, np.float32)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(scored, queries, rankings))


def tune_reranking(
    measured: OutOfFold, rankings: Sequence[SearchHits], scores: Sequence[NDArray[np.float32]]
) -> tuple[float, float]:
    """The best of RERANK_WEIGHTS for the scores (RERANKED,) of each query's first premises, and the MAP with it."""
    found = {weight: measured.map_of(reranked(rankings, scores, weight)) for weight in RERANK_WEIGHTS}
    best = max(found, key=found.__getitem__)
    return best, found[best]


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
    known, ordered = published(mode), measured.map_of(learned.rankings)
    return {
        "alone": Way("the encoder alone", measured.value(Weights()), options_of("dense", Weights())),
        "published": Way("the weights chosen on EntailmentBank", measured.value(known), options_of(mode, known)),
        "tuned": Way("tuned weights", measured.value(weights), options_of(mode, weights)),
        "with features": Way("tuned weights and features", ordered, options_of(mode, weights, learned.features)),
    }


@dataclass(frozen=True)
class Asked:
    """The options of a tuning. `recipe` trains the encoder of each fold, `cross_recipe` its cross-encoder; empty: none.

    `wide` has features given many, too.
    """

    mode: TunedMode
    recipe: Mapping[str, Any]
    trials: int
    queries: int
    seed: int
    pretrained: bool = False
    cross_recipe: Mapping[str, Any] = field(default_factory=dict)
    wide: bool = False


@dataclass(frozen=True)
class Tuned:
    """The weights and features that were found on so many queries, and what each way is worth.

    `versions` are the encoders of the folds, `cross_encoders` their cross-encoders, if any.
    """

    queries: int
    weights: Weights
    features: Mapping[str, float]
    ways: Mapping[str, Way]
    versions: Mapping[str, str]
    cross_encoders: Mapping[str, str]


def tune_over_folds(
    client: Client, data: Mapping[str, Dataset], asked: Asked, report: Callable[[int, int, str], None]
) -> Tuned:
    """Tunes on the held-out queries of all folds, by encoders that have not seen them."""
    texts = [one.text for one in next(iter(data.values())).candidates()]
    held_out, versions, jobs = [], {}, len(data) * (2 if asked.cross_recipe else 1)
    for n, (name, fold) in enumerate(data.items(), start=1):
        version = pretrained_of(client) if asked.pretrained else train_without(client, name, fold, asked.recipe)
        held_out.append(held_out_of(client, fold, texts, version))
        versions[name] = version
        report(n, jobs, name)
    premises = encoded(client, texts, role="premise", space_id=client.trainer.info().default_space_id)
    measured = OutOfFold(texts, premises, held_out)
    known = VECTOR_FEATURES if asked.mode == "dense" else FEATURES
    names = [name for name in known if asked.wide or name not in WIDE_FEATURES]
    tried = OutOfFold(texts, premises, drawn(held_out, asked.queries, asked.seed)).value
    weights = tune(tried, trials=asked.trials, seed=asked.seed, mode=asked.mode)
    learned = measured.learn(weights, names)
    ways, scorers = ways_of(measured, asked.mode, weights, learned), dict[str, str]()
    if asked.cross_recipe:
        ordered = ways["with features"].map >= ways["tuned"].map
        rankings = learned.rankings if ordered else [*measured.rankings(weights)]
        recipe = {"mode": "MODE_CROSS_ENCODER", "seed": asked.seed, **asked.cross_recipe}
        scores: list[NDArray[np.float32]] = []
        for own, (name, fold) in zip(held_out, data.items(), strict=True):
            scorers[name] = train_without(client, name, fold, {**recipe, "base_version": versions[name]})
            first = rankings[len(scores) : len(scores) + len(own.texts)]
            scores += pair_scores(client, own.texts, first, texts, scorers[name])
            report(len(data) + len(scorers), jobs, name)
        weight, value = tune_reranking(measured, rankings, scores)
        before = ways["with features" if ordered else "tuned"]
        options = f"{before.options} --rerank {RERANKED} --rerank-weight {weight:g}"
        ways["re-ranked"] = Way(f"{before.name}, re-ranked by a cross-encoder", value, options)
    return Tuned(len(measured.queries), weights, learned.features, ways, versions, scorers)


def command(
    context: typer.Context,
    folds: Annotated[Path, typer.Argument(help="What `aeenc export folds` wrote.")],
    trials: Annotated[int, typer.Option(min=3, help="Weights to try; the first are the encoder's alone.")] = 60,
    epochs: Annotated[int, typer.Option(min=1, help="Of each fold's job.")] = 8,
    batch_size: Annotated[int, typer.Option(min=1, help="Of each fold's job.")] = 64,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of each fold's job; 0: the loss's default.")] = 0.0,
    initial_share: Annotated[float, typer.Option(min=0, max=1, help="Of each fold's job.")] = 0.05,
    cross_epochs: Annotated[
        int,
        typer.Option(
            min=0,
            help="Also train a cross-encoder without each fold, for so many epochs, and tune its weight; 0: none.",
        ),
    ] = 0,
    cross_base_model: Annotated[
        str,
        typer.Option(help="Of the cross-encoders, by its name in AEENC_TRAINER_BASE_MODELS."),
    ] = "",
    cross_learning_rate: Annotated[
        float, typer.Option(min=0, help="Of the cross-encoders' jobs; 0: the loss's default.")
    ] = 0.0,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Train nothing: tune for the pre-trained encoder.")
    ] = False,
    mode: Annotated[TunedMode, typer.Option(help="Of Retrieve; dense needs no words.")] = "hybrid",
    wide: Annotated[
        bool, typer.Option("--wide", help="Also weigh features given many, which order the first 200: for long lists.")
    ] = False,
    queries: Annotated[int, typer.Option(min=0, help="At most so many queries for the trials, drawn; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
) -> None:
    """Trains an encoder without each fold and tunes the weights of Retrieve on the queries that it has not seen.

    The trainer has to know the folds as data sets (`aeenc export folds` prints the setting). What was trained is found
    again by the next call.
    """
    from aeenc.cli.output import output_of, table
    from aeenc.cli.targets import client

    check_installed({"optuna": "index-tune"})
    directories = sorted(path.parents[2] for path in folds.glob(f"*/dataset/task_1/{HELD_OUT}.jsonl"))
    if len(directories) < 2:
        raise InvalidArgument(
            f"{folds} has no folds, which are directories with dataset/task_1/{HELD_OUT}.jsonl; write them by "
            "`aeenc export folds --data DIR --to FOLDS`, and give FOLDS"
        )
    if pretrained and cross_epochs:
        raise InvalidArgument(f"--cross-epochs {cross_epochs} trains and --pretrained does not; give one of them")
    names = ("epochs", "batch_size", "learning_rate", "initial_share", "seed")
    recipe = dict(zip(names, (epochs, batch_size, learning_rate, initial_share, seed), strict=True))
    given = {"epochs": cross_epochs, "base_model": cross_base_model, "learning_rate": cross_learning_rate}
    cross_recipe = {name: value for name, value in given.items() if value}
    if cross_recipe and not cross_epochs:
        raise InvalidArgument("--cross-base-model and --cross-learning-rate are of cross-encoders; add --cross-epochs")
    out = output_of(context)
    data = {path.name: Dataset.load(path) for path in directories}
    asked = Asked(mode, recipe, trials, queries, seed, pretrained=pretrained, cross_recipe=cross_recipe, wide=wide)
    connected = client(context)
    with out.progress("folds", "folds") as report:
        try:
            found = tune_over_folds(connected, data, asked, report)
        finally:
            for space_id in ("", CROSS_ENCODERS):
                with suppress(NotFound):  # nothing has been encoded, or scored
                    connected.registry.delete_label(LABEL, space_id=space_id)
    best = best_way(found.ways)
    result = {
        **{name: value for name, value in asdict(found).items() if name != "ways"},
        "map": {key: way.map for key, way in found.ways.items()},
        "best": best,
        "options": found.ways[best].options,
    }
    rows = [(way.name, f"{way.map:.4f}") for way in found.ways.values()]
    shown = table([f"{found.queries:,} held-out queries, ranked by", "strict MAP"], rows, right=1)
    out.result(result, shown, f"Best: {found.ways[best].name}. Its options of `aeenc retrieve` and `aeenc evaluate`:")
    if not out.as_json:
        typer.echo(found.ways[best].options)  # in one line: it is to be copied
    if best == "re-ranked":
        trained = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in cross_recipe.items())
        out.note(
            "re-ranking needs a cross-encoder that has learned from all of train: `aeenc train CORPUS --data-set NAME "
            f"--mode cross-encoder --base-version ENCODER {trained}`, then `aeenc publish VERSION`"
        )
    if found.queries < FEW:
        out.note(f"{found.queries} queries are few: the differences may be chance; {FEW} or more say what is better")
    if not pretrained:
        out.note(
            "kept for the next call: the jobs, checkpoints and corpora of the folds. `aeenc jobs` lists the jobs with "
            "their versions; `aeenc jobs delete JOB`, `aeenc checkpoints delete VERSION` and "
            "`aeenc corpus delete NAME` remove them"
        )


def pretrained_of(client: Client) -> str:
    """The version of the space's pre-trained encoder."""
    space_id = client.trainer.info().default_space_id
    found = [one for one in client.trainer.list_checkpoints() if one.pretrained and one.space_id == space_id]
    return str(found[0].version)


def register(app: typer.Typer) -> None:
    """Adds the command. Called through the entry-point group `aeenc.commands`."""
    app.command("tune-retrieval")(command)
