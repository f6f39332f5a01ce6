"""Quality after honest tuning: `make bench NAME=quality`.

    make bench NAME=quality ARGS='--only pretrained'   trains nothing: weights for the encoder as it comes; minutes
    make bench NAME=quality ARGS='--only ours'         five encoders without a fold each, three with all; hours
    make bench NAME=quality ARGS='--only epochs'       fewer epochs and more, out of fold; 15 encoders, half an hour
    make bench NAME=quality ARGS='--only latency'      what each stage adds to one query; three minutes
    make bench NAME=quality ARGS='--base NAME'         a larger base model, by hub id or directory; half an hour a seed

Weights are tuned on train, out of fold (docs/decisions/0043-weights-are-tuned-out-of-fold.md), no epoch is chosen, and
dev is measured once, through Retrieve, with the weights found. The weights that were chosen on dev stand beside it.
Results of some parts, or of a base model and its seeds, have a name of their own. Needs EntailmentBank in
`data/entailmentbank` or in AEENC_BENCH_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc import Fusion, Retrieval
from aeenc.cli.corpus import ensure_corpus
from aeenc.evaluation import gold_of
from aeenc.files.whole import whole_folder
from aeenc.trees import HELD_OUT, Dataset, write_folds
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.kept_fleet import home_of
from benchmarks.harness.rows import Rows
from benchmarks.tables.by_tree import AP, BY_QUERY, FACTS, UNSEEN, difference, means_of, whole_trees
from benchmarks.tables.drawing import draw_stages
from benchmarks.tables.research import HOME, Research, at_hand, research
from benchmarks.tables.table_records import RESULTS, record_of
from benchmarks.tables.table_rows import FULL, ORDERED, ORDERED_RERANKED, OURS, RERANKER, VECTORS
from services.index.values import FEATURES, VECTOR_FEATURES, WIDE_FEATURES, SearchHits
from services.trainer.models.base_model import DEFAULT_NAME
from services.tuning.out_of_fold import HeldOut, OutOfFold, Weights, drawn
from services.tuning.retrieval import encoded, held_out_of, tune

PARTS = ("pretrained", "ours", "epochs", "latency")
SPLIT = "dev"
TRIALS = 40
EPOCHS = (4, OURS["epochs"], 12)
QUERIES = 800  # of the trials
CALLS, WARM = 200, 20  # of the latency
LEXICAL = ORDERED.fusion.lexical_weight if ORDERED.fusion else 0.0
STAGES: Mapping[str, Retrieval] = {
    "dense": Retrieval("dense"),
    "dense, features": VECTORS,
    "hybrid": Retrieval("hybrid", Fusion(lexical_weight=LEXICAL)),
    "hybrid, prior, feedback": replace(ORDERED, fusion=Fusion(lexical_weight=LEXICAL)),
    "hybrid, prior, feedback, features": ORDERED,
}
BRIEF = 64  # queries that the cross-encoder of the latency learns from
SEEDS = (0, 1, 2)
LARGER: Mapping[str, Any] = {**OURS, "learning_rate": 5e-5}  # of a base model of 12 layers


FOLDS = {"fold": 5, "half": 2}


def fold_directories(dataset: Dataset, kind: str) -> Mapping[str, Path]:
    """The folds of the data by name; written once for the same files."""
    to, number = home_of(HOME / kind, dataset.directory), FOLDS[kind]
    if not to.is_dir():
        with whole_folder(to) as temporary:
            write_folds(dataset, temporary, number=number)
    return {f"{kind}-{n}": to / f"fold-{n}" for n in range(number)}


@dataclass(frozen=True)
class Folds:
    """A fleet over the data, and the same fleet over each fold of it."""

    whole: Research
    directories: Mapping[str, Path]

    def fold(self, name: str) -> Research:
        """The fleet over a fold, whose corpus says which texts stand only in the fold."""
        dataset = Dataset.load(self.directories[name])
        return Research(self.whole.client, dataset, ensure_corpus(self.whole.client, dataset), self.whole.home)

    def version_without(self, name: str, fields: Mapping[str, Any] = OURS) -> str:
        """The encoder that has not seen a fold."""
        own = {**fields, "data_sets": [name], "seed": 0, "validation": []}
        return str(self.fold(name).train(f"without-{name}", own).version)

    def version(self, seed: int, fields: Mapping[str, Any] = OURS) -> str:
        """The encoder that has seen all of train."""
        return str(self.whole.train("whole", {**fields, "seed": seed, "validation": []}).version)


@contextmanager
def folds(base_model: str = DEFAULT_NAME, kind: str = "fold", **settings: Any) -> Iterator[Folds]:
    """A fleet with the folds of the benchmarks' data among its data sets."""
    directories = fold_directories(entailmentbank(), kind)
    with research(base_model, further=directories, **settings) as whole:
        yield Folds(whole, directories)


Reports = Sequence[Mapping[str, Any]]  # of a way to retrieve, one a seed, by Research.evaluate
FIGURES = {AP: "{} MAP", UNSEEN: "unseen queries", FACTS: "facts alone"}


def figure(reports: Reports, name: str = AP) -> float:
    """A strict MAP, of all queries, of unseen ones or over facts alone: the mean over the seeds."""
    return float(np.mean([means_of(one[BY_QUERY])[name] for one in reports]))


def of_trees(reports: Reports, name: str = "AllCorrect@25") -> float:
    """A metric of whole trees by the first 25 of the hypothesis alone: the mean over the seeds."""
    return float(np.mean([one["trees"]["hypothesis_alone"][name] for one in reports]))


def note_figures(rows: Rows, name: str, found: Reports, alone: Reports, least: Mapping[str, float]) -> None:
    """Adds the figures beside those of cosine alone, each with its bar, or without one."""
    for part, told in FIGURES.items():
        if part in least:
            rows.at_least(f"{name}: {told.format(SPLIT)}", figure(found, part), "", least[part], figure(alone, part))
        else:
            rows.note(f"{name}: {told.format(SPLIT)}", figure(found, part), "", figure(alone, part))


def note_difference(rows: Rows, name: str, found: Reports, before: Reports) -> None:
    """Adds the p-value by tree of a difference of strict MAP."""
    tested = difference(found, before)
    rows.at_most(f"{name}: p by tree", tested.p if tested else 1.0, "", 0.05)


@dataclass(frozen=True)
class HeldOutQuality:
    """Strict MAP of the held-out queries of train, and `all_correct` of their trees."""

    map: float
    all_correct: float


@dataclass(frozen=True)
class Tuned:
    """The weights found on the held-out queries of train, those of features too, and the quality of each way.

    `alone` is the cosine, `vectors` adds the features of mode dense: nothing but the frozen index's vectors.
    """

    weights: Weights
    features: Mapping[str, float]
    vector_features: Mapping[str, float]
    alone: HeldOutQuality
    vectors: HeldOutQuality
    tuned: HeldOutQuality
    ordered: HeldOutQuality


def tune_out_of_fold(running: Folds, versions: Sequence[str]) -> Tuned:
    """Tunes on the held-out queries of all folds, encoded by a version each."""
    folds = [Dataset.load(directory) for directory in running.directories.values()]
    texts, premises = premises_of(running)
    held_out = held_out_queries(running, folds, texts, versions)
    weights = tune(OutOfFold(texts, premises, drawn(held_out, QUERIES, 0)).value, trials=TRIALS, seed=0)
    whole = OutOfFold(texts, premises, held_out)
    narrow = [name for name in FEATURES if name not in WIDE_FEATURES]
    learned = whole.learn(weights, narrow)
    by_vectors = whole.learn(Weights(), [name for name in VECTOR_FEATURES if name in narrow])
    trees = [tree for fold in folds for tree in fold.trees(HELD_OUT)]

    def quality(rankings: Iterable[SearchHits]) -> HeldOutQuality:
        ranked = list(rankings)
        found = {query: hits.ordinals for query, hits in zip(whole.queries, ranked, strict=True)}
        all_correct = whole_trees(trees, found, texts).all_correct_at_25
        return HeldOutQuality(whole.map_of(ranked), all_correct)

    each = [whole.rankings(Weights()), by_vectors.rankings, whole.rankings(weights), learned.rankings]
    return Tuned(weights, learned.features, by_vectors.features, *map(quality, each))


def premises_of(running: Folds) -> tuple[list[str], NDArray[np.float32]]:
    """Returns the texts of all premises, and their vectors (n, dim)."""
    texts = [one.text for one in running.whole.dataset.candidates()]
    client = running.whole.client
    return texts, encoded(client, texts, role="premise", space_id=client.trainer.info().default_space_id)


def held_out_queries(
    running: Folds, folds: Sequence[Dataset], texts: Sequence[str], versions: Sequence[str]
) -> list[HeldOut]:
    """Encodes the held-out queries of each fold by its version, over premises of these texts."""
    return [held_out_of(running.whole.client, fold, texts, one) for fold, one in zip(folds, versions, strict=True)]


def retrieval_of(weights: Weights, features: Mapping[str, float] = MappingProxyType({})) -> Retrieval:
    """Mode hybrid with some weights."""
    fusion = Fusion(lexical_weight=weights.lexical_weight, features=dict(features))
    return Retrieval("hybrid", fusion, prior=weights.prior, negative_feedback=weights.negative_feedback)


def tell(rows: Rows, name: str, found: Tuned) -> None:
    """Adds what the tuning found on train: each way over the one before."""
    told = ", ".join(f"{key} {value:g}" for key, value in asdict(found.weights).items())
    print(f"{name}: {told}; features {json.dumps(dict(found.features))}", flush=True)
    print(f"{name}: mode dense, features {json.dumps(dict(found.vector_features))}", flush=True)
    alone, tuned, ordered = found.alone, found.tuned, found.ordered
    rows.at_least(f"{name}: held-out MAP of train, features of vectors", found.vectors.map, "", alone.map, alone.map)
    rows.at_least(f"{name}: held-out MAP of train, weights", tuned.map, "", alone.map, alone.map)
    rows.at_least(f"{name}: held-out MAP of train, features", ordered.map, "", tuned.map, tuned.map)
    row = f"{name}: AllCorrect@25 over dense alone, out-of-fold trees of train"
    rows.at_least(row, ordered.all_correct - alone.all_correct, "", 0.02, alone.all_correct)


def ways(found: Tuned) -> list[Retrieval | None]:
    """Lists how dev is measured: by cosine, by vectors and their features, and full retrieval.

    That by weights of dev, by weights tuned on train, and with features.
    """
    vectors = Retrieval("dense", Fusion(features=dict(found.vector_features)))
    return [None, vectors, FULL, retrieval_of(found.weights), retrieval_of(found.weights, found.features)]


def compare(rows: Rows, name: str, measured: Sequence[Reports]) -> None:
    """Adds the figures of dev for `ways`: all and unseen queries, facts alone, each beside cosine, and p by tree."""
    alone, vectors, chosen, tuned, ordered = measured
    named = {"features of vectors": vectors, f"weights of {SPLIT}": chosen, "weights": tuned, "features": ordered}
    for way, one in named.items():
        note_figures(rows, f"{name}, {way}", one, alone, {part: figure(alone, part) for part in FIGURES})
    row = f"{name}: {SPLIT} AllCorrect@25 from the hypothesis alone"
    rows.at_least(row, of_trees(ordered), "", of_trees(alone) + 0.02, of_trees(alone))
    note_difference(rows, f"{name}, features over weights", ordered, tuned)


def pretrained(rows: Rows, running: Folds) -> None:
    """The encoder as it comes: no encoder is trained."""
    version = running.whole.pretrained()
    running.whole.serve(version)
    found = tune_out_of_fold(running, [version] * len(running.directories))
    tell(rows, "pre-trained", found)
    compare(rows, "pre-trained", [[measure(running.whole, way)] for way in ways(found)])


def ours(rows: Rows, running: Folds) -> None:
    """The recipe `ours`: weights by encoders that have not seen a fold, three seeds that have seen all of train."""
    found = tune_out_of_fold(running, [running.version_without(name) for name in running.directories])
    tell(rows, "ours", found)
    measured = by_seeds(running, OURS, SEEDS, ways(found))
    compare(rows, "ours, three seeds", measured)
    alone, vectors, ordered = measured[0], measured[1], measured[-1]
    note_figures(rows, "MiniLM, frozen index alone", vectors, alone, {AP: 0.58, UNSEEN: 0.565})
    note_difference(rows, "MiniLM, frozen index alone over cosine", vectors, alone)
    note_figures(rows, "full pipeline, MiniLM", ordered, alone, {AP: 0.62, UNSEEN: 0.612})
    rows.at_least("full pipeline, any base: strict MAP", figure(ordered), "", 0.635)


def epochs(rows: Rows, running: Folds) -> None:
    """The number of epochs of the recipe `ours`: whole trainings without a fold each, by cosine alone."""
    folds = [Dataset.load(directory) for directory in running.directories.values()]
    texts, premises = premises_of(running)
    found = {}
    for number in EPOCHS:
        versions = [running.version_without(name, {**OURS, "epochs": number}) for name in running.directories]
        measured = OutOfFold(texts, premises, held_out_queries(running, folds, texts, versions))
        found[number] = measured.value(Weights())
        rows.note(f"ours, {number} epochs: held-out MAP of train", found[number], "")
    best = max(found, key=found.__getitem__)
    row = f"ours, {OURS['epochs']} epochs: held-out MAP of train over that of {best}, the best"
    rows.at_least(row, found[OURS["epochs"]] - found[best], "", -0.003, found[best])


def measure(research: Research, way: Retrieval | None) -> dict[str, Any]:
    """The report of the version that `stable` names."""
    return research.evaluate(SPLIT, retrieval=way, strict_only=True, trees=True)


def by_seeds(
    running: Folds, fields: Mapping[str, Any], seeds: Sequence[int], retrievals: Sequence[Retrieval | None]
) -> list[Reports]:
    """Measures each way by encoders that have seen all of train, one a seed."""
    found = []
    for seed in seeds:
        running.whole.serve(running.version(seed, fields))
        found.append([measure(running.whole, way) for way in retrievals])
    return list(zip(*found, strict=True))


def larger(rows: Rows, base_model: str, seeds: Sequence[int]) -> None:
    """The recipe `ours` from another base model, by the weights that `ours` has found for MiniLM: nothing is tuned."""
    if reason := at_hand(base_model):
        raise SystemExit(reason)
    with folds(base_model) as running:
        alone, vectors, ordered = by_seeds(running, LARGER, seeds, (None, VECTORS, ORDERED))
    base = f"{Path(base_model).name}, seed {', '.join(map(str, seeds))}"
    for way, one in (("cosine", alone), ("features of vectors", vectors)):
        note_figures(rows, f"{base}, frozen index alone, {way}", one, alone, {AP: 0.595, UNSEEN: 0.575})
    note_difference(rows, f"{base}, frozen index alone, features over cosine", vectors, alone)
    note_figures(rows, f"{base}, full pipeline", ordered, alone, {AP: 0.635})


def timed(research: Research, ways: Mapping[str, Retrieval]) -> dict[str, list[float]]:
    """The milliseconds at the caller of each way by turns, for CALLS queries one at a time, after WARM."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    retrieve = research.client.index.retrieve  # in the precision that the encoder has chosen, as users call it
    texts = [text for text, _ in gold_of(research.dataset, SPLIT)[:CALLS]]
    for n, text in enumerate([*texts[:WARM], *texts]):
        for name, way in ways.items():
            started = time.perf_counter()
            retrieve(research.corpus, [text], k=10, retrieval=way)
            if n >= WARM:
                found[name].append(1000 * (time.perf_counter() - started))
    return found


def latency(rows: Rows, running: Folds) -> None:
    """Times Retrieve for one query at a time, in milliseconds at the caller, and measures the MAP, stage by stage.

    The cross-encoder has learned from BRIEF queries alone, and its int8 gate asks as many of dev: it takes
    as long as a better one. The MAP beside it is that of the better one in Table 1, if it is there.
    """
    research = running.whole
    judged = gold_of(research.dataset, SPLIT)
    brief = {**RERANKER, "epochs": 1, "items_per_epoch": BRIEF, "validation": judged[:BRIEF]}
    scorer = research.train("latency", brief).version
    research.serve(running.version(0))
    research.publish(str(scorer))
    quality = {name: figure([measure(research, way)]) for name, way in STAGES.items()}
    ways = {**STAGES, "all that, a cross-encoder over 20": ORDERED_RERANKED}
    if better := record_of("ours-ordered-reranked", SPLIT, 0):
        quality["all that, a cross-encoder over 20"] = better.report["strict"]["MAP"]
    medians = {}
    for name, found in timed(research, ways).items():
        medians[name], p95 = np.percentile(found, [50, 95]).tolist()
        rows.add(f"one query, {name}: median", medians[name], "ms", "reported", True, medians["dense"])
        if name in STAGES:
            rows.note(f"one query, {name}: p95", p95, "ms")
        else:
            rows.at_most(f"one query, {name}: p95", p95, "ms", 150.0)
    for name, value in quality.items():
        rows.add(f"{name}: strict MAP of {SPLIT}, one seed", value, "", "reported", True, quality["dense"])
    points = {name: (medians[name], value) for name, value in quality.items()}
    draw_stages(points, f"strict MAP, {SPLIT}", RESULTS / f"stages-{SPLIT}.png")


def main() -> None:
    """Measures the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--base", help="measure the recipe from this base model, and nothing else")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of --base")
    given = parser.parse_args()
    if given.base:
        rows = Rows("-".join(["quality-base", Path(given.base).name, *map(str, given.seeds)]))
        larger(rows, given.base, given.seeds)
        rows.finish()
        return
    rows = Rows.of("quality", given.only, PARTS)
    measures = {"pretrained": pretrained, "ours": ours, "epochs": epochs, "latency": latency}
    with folds() as running:
        for part in given.only:
            measures[part](rows, running)
    rows.finish()


if __name__ == "__main__":
    main()
