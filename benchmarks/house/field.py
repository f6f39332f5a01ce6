"""`make bench NAME=field`: what the field takes from and gives to this project, against its own figures.

    make bench NAME=field                          all of it that needs no fleet; seconds
    make bench NAME=field ARGS='--home .aeenc'     also aeenc.local, and sentence-transformers, over the largest corpus
                                                   of a fleet that runs; minutes (`aeenc corpus build bank --data DIR`)
    make bench NAME=field ARGS='--lists FILE'      also a file of `aeenc export task3` for split dev

Built trees: the published predictions of EntailmentBank's dev (folder `predictions` beside `dataset`), by `score_trees`
and by the published scorer without BLEURT. Step oracles: the gold trees of dev, built by the sampler's algorithm over
BM25, with all candidates of a node asked at once, and in steps until the oracle ends the node. Checks: EntailmentBank's
faults, and ten damages of the sample. Lists: the share of dev's leaves that those of a prover's input have, beside
the published lists of Task 3 and the ceiling of the fact file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aeenc
import aeenc.local
from aeenc import Fusion, values
from aeenc.calls.retrieval import Hit
from aeenc.evaluation import (
    UNRANKED,
    condensed,
    gold_of,
    grades_of,
    leaf_recall,
    load_data,
    mean_scores,
    metrics_of,
    normalised,
    read_predictions,
    score_trees,
)
from aeenc.evaluation.faults import FAULTS, faults_of
from aeenc.exports import conclusions_of, gold_judgements, write_beir
from aeenc.files.lines import text_lines
from aeenc.oracle import Answer, Candidate, Task
from aeenc.oracles.gold import GoldOracle
from aeenc.trees import Dataset, read_trees, unseen_folds
from aeenc.trees.dataset import FACTS_FILE
from aeenc.trees.files import parse_context
from aeenc.values import RunConfig
from benchmarks.harness.entailmentbank import DATA, entailmentbank
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.sdk.sentences import to_sentence_transformers_and_back
from services.corpus.active import read_active
from services.corpus.generation import Generation, corpora_of, open_generation
from services.corpus.sameness import repeats
from services.index.lexical.bm25 import LexicalIndex, best
from services.launcher.fleet import SERVICES, Fleet
from services.sampler.acs.algorithm import Known, Node, NodeAnswer, NodeRound, Tree, reach
from services.sampler.oracles.answers import admitted, read_answers
from services.store.artifacts import ArtifactStore

SPLIT = "dev"
TOLERANCE = 1e-6
RUNS, FIRST_ANSWER_S = 5, 2.0
PART = 64  # texts of a call
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"negative_feedback": 0.2},
    {"mode": "lexical"},
    {"mode": "iterative_lexical"},
    {"mode": "hybrid", "fusion": Fusion(features={"first": 2.0, "rank": 0.3, "words_given_others": 2.5})},
)
RECALL, ALL_CORRECT = 0.78, 0.48  # by normalised text, of lists for provers
QUERIES_IN_TRAIN = 57
K, STEP, FEWER = 20, 5, 0.85
DEPTH = 1000
FOLDS = 5


def built_trees(rows: Rows) -> None:
    """Each published prediction, tree by tree."""
    folder = DATA / "predictions"
    if not folder.is_dir():
        rows.note("built trees: not measured, there is no folder", str(folder), "")
        return
    for name, published in json.loads((folder / f"scores.{SPLIT}.json").read_text()).items():
        task, model = name.split()
        gold = read_trees(DATA / "dataset" / task / f"{SPLIT}.jsonl")
        scores = score_trees(gold, read_predictions(folder / f"{task}-{model}.{SPLIT}.tsv", gold))
        farthest = 0.0
        for score, expected in zip(scores, published, strict=True):
            found = score.to_dict()
            for part in ("leaves", "steps"):
                for metric, value in expected[part].items():
                    own = found[part][{"acc": "AllCorrect"}.get(metric, metric)]
                    farthest = max(farthest, abs(own - value))
        rows.at_most(f"{name}: farthest from the published scorer, of a tree", farthest, "", TOLERANCE)
        for part, means in mean_scores(scores).items():
            for metric, value in means.items():
                rows.note(f"{name}: {part} {metric}", value, "")
    rows.note("left out: they need BLEURT", "intermediates, overall", "")


def lists_for_provers(rows: Rows, dataset: Dataset, files: list[Path]) -> None:
    """Leaves in the published lists of Task 3, in those given, and in the fact file."""
    trees = dataset.trees(SPLIT)
    facts = list(dataset.facts.values())
    ceiling = leaf_recall(trees, [facts] * len(trees))
    rows.note("leaves in the fact file: recall", ceiling.recall, "")
    rows.note("leaves in the fact file: all correct", ceiling.all_correct, "")
    published = DATA / "dataset" / "task_3" / f"{SPLIT}.jsonl"
    told = None
    if published.is_file():
        told = leaf_recall(trees, list(lists_of(published)))
        rows.note("published lists: Recall@25", told.recall, "")
        rows.note("published lists: AllCorrect@25", told.all_correct, "")
    conclusions = conclusions_of(trees)
    for file in files:
        lists = list(lists_of(file))
        found, exact = leaf_recall(trees, lists), leaf_recall(trees, lists, str)
        rows.at_least(f"{file.name}: Recall@25", found.recall, "", RECALL, told and told.recall)
        rows.at_least(f"{file.name}: AllCorrect@25", found.all_correct, "", ALL_CORRECT, told and told.all_correct)
        rows.note(f"{file.name}: Recall@25 by exact text", exact.recall, "")
        rows.note(f"{file.name}: AllCorrect@25 by exact text", exact.all_correct, "")
        concluded = sum(any(normalised(text) in conclusions for text in one) for one in lists)
        rows.at_most(f"{file.name}: lists with a conclusion", concluded, "", 0)


def round_trips(rows: Rows, dataset: Dataset) -> None:
    """Judgements out in BEIR's layout, in as any data set, and out again; its own loader is in tests/integrations."""
    with TemporaryDirectory() as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        for source, to in ((dataset, first), (first, second)):
            held = source if isinstance(source, Dataset) else load_data(source)
            corpus = [(one.id, one.text) for one in held.candidates()]
            write_beir(to, corpus, gold_judgements(held, SPLIT), split=SPLIT)
        told, gold = dict(gold_of(load_data(second), SPLIT)), dict(gold_of(dataset, SPLIT))
        unlike = sum(told.get(query) != grades_of(premises) for query, premises in gold.items())
        rows.note("BEIR out, in and out again: queries", len(told), "")
        rows.at_most("BEIR out, in and out again: queries with other texts or grades", unlike, "", 0)


def built_in_steps(rows: Rows, dataset: Dataset) -> None:
    """Gold trees with the oracle's word on each node, and without; both ways find the same leaves."""
    nearest = Nearest([candidate.text for candidate in dataset.candidates()])
    for name, conditioned in (("once", False), ("conditioned", True)):
        config = RunConfig(k=K, max_depth=8, conditioned=conditioned)
        asked, leaves = build(dataset, nearest, config, steps=False)
        # a flat run retrieves once: no premise may be called missing
        fewer, same = build(
            dataset, nearest, replace(config, step=STEP, conditioned=False), steps=True, ends=not conditioned
        )
        lacking = sum(len(one - other) for one, other in zip(leaves, same, strict=True))
        rows.note(f"gold trees, retrieved {name}: leaves found", sum(map(len, leaves)), "")
        rows.note(
            f"gold trees, retrieved {name}: candidates asked, all at once; by {STEP}", f"{asked:,}; {fewer:,}", ""
        )
        rows.at_most(f"gold trees, retrieved {name}: leaves that steps do not find", lacking, "", 0)
        rows.at_most(f"gold trees, retrieved {name}: candidates asked by steps", fewer / asked, "x", FEWER)


class Nearest:
    """Texts by BM25, best first, without those that share no word."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._index = texts, LexicalIndex.of(texts)

    def __call__(self, query: str, accepted: Sequence[str], k: int) -> list[Candidate]:
        scores = self._index.scores(self._index.terms(query, accepted))
        found = best(scores, k + 1 + len(accepted), None)
        ranked = zip(found.ordinals.tolist(), found.scores.tolist(), strict=True)
        kept = [(ordinal, score) for ordinal, score in ranked if self._texts[ordinal] not in (query, *accepted)][:k]
        return [Candidate(str(one), self._texts[one], rank, score) for rank, (one, score) in enumerate(kept, start=1)]


def build(
    dataset: Dataset, nearest: Nearest, config: RunConfig, *, steps: bool, ends: bool = False
) -> tuple[int, list[set[str]]]:
    """Builds the gold trees of dev. Counts the candidates that were asked, and lists the leaves of each tree.

    With `ends`, the oracle only says that nodes are complete.
    """
    oracle = GoldOracle(dataset, SPLIT, steps=steps)
    known: dict[str, Known] = {}
    asked, leaves = 0, []
    for number, (name, text) in enumerate(dict(dataset.hypotheses(SPLIT)).items()):
        tree, found = Tree(number, name, [Node(0, text)]), set[str]()
        while pending := tree.pending():
            for node in pending:
                due: NodeRound | None = NodeRound(tree, node, known.get(node.text, Known()))
                while due is not None:
                    if not due.asked:
                        told = [one.text for one in due.candidates if one.id in due.accepted]
                        due = due.with_nearest(nearest(node.text, told, reach(config)), config.k, step=config.step)
                    answer = answered(oracle, due, ends=ends) if due.asked else None
                    asked += len(due.asked)
                    outcome = due.outcome(answer)
                    known[node.text] = outcome.known
                    following = due.next_round(outcome, config)
                    if following is None:
                        tree.grow(tree.judged(node.ordinal, outcome.result))
                        found |= {premise.text for premise in outcome.result.accepted if premise.leaf}
                    due = following
            tree.nodes += tree.next_level(config)
            tree.depth += 1
        leaves.append(found)
    return asked, leaves


def answered(oracle: GoldOracle, due: NodeRound, *, ends: bool) -> NodeAnswer:
    """The oracle's answer as the sampler reads it."""
    task = Task(due.node_id, "", due.node.text, (), tuple(due.explaining(due.known)), tuple(due.asked))
    judged = oracle.judge(task)
    said = judged if isinstance(judged, Answer) else Answer(judged)
    if ends and said.node_verdict == "premise_missing":
        said = replace(said, node_verdict=None)
    [answer] = read_answers([task], [values.Answer.from_message(said.to_proto(task.task_id))], "gold")
    return admitted(task, answer, {})


def checks(rows: Rows) -> None:
    """EntailmentBank's own faults, and damages of the sample that `data check` must name."""
    kinds = Counter((fault.kind, fault.split) for fault in faults_of(DATA))
    rows.at_least("data check: queries of dev in train", kinds["query-in-train", SPLIT], "", QUERIES_IN_TRAIN)
    for (kind, split), count in kinds.items():
        rows.note(f"data check: {split}: {FAULTS[kind]}", count, "")
    sample = ROOT / "data" / "sample"
    before = Counter(fault.kind for fault in faults_of(sample))
    named = 0
    for name, (kind, damage) in DAMAGES.items():
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "sample"
            shutil.copytree(sample, copy)
            damage(copy)
            found = Counter(fault.kind for fault in faults_of(copy))
        named += found[kind] > before[kind]
        if found[kind] <= before[kind]:
            rows.note(f"data check: not named: {name}", kind, "")
    rows.at_least(f"data check: damages named, of {len(DAMAGES)}", named, "", len(DAMAGES))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _appended(source: str, to: str, change: Callable[[str], str] = str) -> Callable[[Path], object]:
    """A damage that adds the first line of a file, changed, to another."""

    def damage(folder: Path) -> None:
        path = folder / to
        path.write_text("\n".join([*_lines(path), change(_lines(folder / source)[0])]) + "\n", encoding="utf-8")

    return damage


def _changed(file: str, change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(
        change((folder / file).read_text(encoding="utf-8")), encoding="utf-8"
    )


def capitals(line: str) -> str:
    """A tree whose hypothesis is in capitals."""
    record = json.loads(line)
    return json.dumps({**record, "hypothesis": record["hypothesis"].upper() + "!"})


def without_a_leaf(text: str) -> str:
    """The facts without one that is a leaf of dev."""
    trees = read_trees(ROOT / "data" / "sample" / "dataset/task_1/dev.jsonl")
    leaves = {tree.texts[label] for tree in trees for label in tree.leaves}
    facts = json.loads(text)
    gone = next(name for name, fact in facts.items() if fact in leaves)
    return json.dumps({name: fact for name, fact in facts.items() if name != gone})


def with_article(text: str) -> str:
    """The facts and one of them again, with an article before it."""
    facts = json.loads(text)
    return json.dumps({**facts, "again": f"The {next(iter(facts.values()))}."})


TRAIN_FILE, DEV_FILE = "dataset/task_1/train.jsonl", "dataset/task_1/dev.jsonl"
# name -> the kind of fault that it is, and the damage
DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a query of dev in train": ("query-in-train", _appended(DEV_FILE, TRAIN_FILE)),
    "the same in capitals": ("query-nearly-in-train", _appended(DEV_FILE, TRAIN_FILE, capitals)),
    "an id twice": ("repeated-id", _appended(DEV_FILE, DEV_FILE)),
    "a line cut off": ("unreadable", _appended(DEV_FILE, DEV_FILE, lambda line: line[:60])),
    "no train": ("train-missing", lambda folder: (folder / TRAIN_FILE).unlink()),
    "no facts": ("facts-missing", lambda folder: (folder / FACTS_FILE).unlink()),
    "facts cut off": ("unreadable", _changed(FACTS_FILE, lambda text: text[: len(text) // 2])),
    "a fact taken out": ("gold-not-a-fact", _changed(FACTS_FILE, without_a_leaf)),
    "a fact twice but for an article": ("near-duplicate", _changed(FACTS_FILE, with_article)),
    "an empty file": ("unreadable", _changed(DEV_FILE, lambda _: "")),
}


def unseen_gold(rows: Rows, dataset: Dataset) -> None:
    """Pairs of dev whose premise explains nothing in train, and how BM25 finds them beside the others."""
    seen = {premise for query in dataset.queries("train") for premise in query.gold}
    nearest = Nearest([candidate.text for candidate in dataset.candidates()])
    found: dict[bool, list[NDArray[np.int64]]] = {True: [], False: []}
    pairs = Counter[bool]()
    for query in dataset.queries(SPLIT):
        gold = [premise for premise in query.gold if premise != query.text]
        at = {one.text: one.rank for one in nearest(query.text, (), DEPTH)}
        ranks, is_seen = np.array([at.get(one, UNRANKED) for one in gold]), np.array([one in seen for one in gold])
        for part, marks in ((True, is_seen), (False, ~is_seen)):
            if marks.any():
                found[part].append(condensed(ranks, marks))
                pairs[part] += int(marks.sum())
    for part, name in ((True, "seen"), (False, "unseen")):
        rows.note(f"gold premises {name} in train: queries; pairs", f"{len(found[part])}; {pairs[part]}", "")
        rows.note(f"gold premises {name} in train: MAP by BM25", metrics_of(found[part]).map, "")
    trees = dataset.trees("train")
    leaves = [{tree.texts[label] for label in tree.leaves} for tree in trees]
    fold = set(unseen_folds(trees, FOLDS)[0])
    left = set[str]().union(*(own for at, own in enumerate(leaves) if at not in fold))
    held = [leaf for at in sorted(fold) for leaf in leaves[at]]
    rows.note("a fold of train for unseen gold: trees held back; left", f"{len(fold)}; {len(trees) - len(fold)}", "")
    rows.note("its leaves that no tree left has", sum(leaf not in left for leaf in held) / len(held), "")
    rows.note("candidates that say the same as an earlier one", repeats(one.text for one in dataset.candidates()), "")


def beside_a_fleet(rows: Rows, home: Path, dataset: Dataset) -> None:
    """Over the largest corpus of a fleet that runs: retrieval in one process, and sentence-transformers."""
    store = ArtifactStore(home / "artifacts")
    active = {name: found for name in corpora_of(store) if (found := read_active(store, name))}
    opened = max((open_generation(store, *one) for one in active.items()), key=lambda one: len(one.premises))
    with aeenc.connect(**{name: Fleet(home).targets()[name] for name in SERVICES}) as client:
        in_one_process(rows, client, home, opened, [text for _, text in dataset.hypotheses(SPLIT)])
        to_sentence_transformers_and_back(rows, client, store, opened, dataset, SPLIT)


def same_premises(first: Sequence[Hit], second: Sequence[Hit]) -> bool:
    """Tells whether answers have the same premises; in the order of scores within TOLERANCE, rounding decides."""
    there, least = {hit.id: hit.score for hit in second}, second[-1].score if second else 0.0
    near = (abs(hit.score - there.get(hit.id, least)) <= TOLERANCE for hit in first)
    return len(first) == len(second) and all(near)


def in_one_process(rows: Rows, client: aeenc.Client, home: Path, opened: Generation, texts: list[str]) -> None:
    """From `import aeenc.local` to the first answer, in new processes, and its answers beside those of the services."""
    code = (
        "import os, time; started = time.perf_counter(); import aeenc.local; "
        f"aeenc.local.open({str(home)!r}).retrieve({opened.corpus!r}, ['a magnet attracts an iron nail']); "
        "print(time.perf_counter() - started, sum(os.times()[:2]))"
    )
    runs = [subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(RUNS)]
    took, busy = (min(float(one[column]) for one in runs) for column in (0, 1))
    rows.note("aeenc.local: premises", len(opened.premises), "")
    rows.at_most(f"aeenc.local: import to first answer, best of {RUNS}", took, "s", FIRST_ANSWER_S)
    rows.note("aeenc.local: the same, processor time with the start of Python", busy, "s")
    here = aeenc.local.open(home)
    unlike, farthest = 0, 0.0
    for options in WAYS:
        for start in range(0, len(texts), PART):
            asked = opened.corpus, texts[start : start + PART]
            both = [one.retrieve(*asked, k=K, precision="float32", **options) for one in (here, client.index)]
            for own, served in zip(*both, strict=True):
                unlike += not same_premises(own, served)
                farthest = max([farthest, *(abs(a.score - b.score) for a, b in zip(own, served, strict=False))])
    rows.note("aeenc.local: answers compared, in float32", len(WAYS) * len(texts), "")
    rows.at_most("aeenc.local: answers with other premises than the services'", unlike, "", 0)
    rows.at_most("aeenc.local: farthest score from the services'", farthest, "", TOLERANCE)


def lists_of(file: Path) -> Iterator[list[str]]:
    """The sentences of each line, in the order of the split's trees."""
    for _, line in text_lines(file):
        yield list(parse_context(json.loads(line)["context"]).values())


def main() -> None:
    """Measures what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", type=Path, nargs="*", default=[], help="files of `aeenc export task3` for dev")
    parser.add_argument("--home", type=Path, help="the home of a fleet that runs, with a corpus of these data")
    asked = parser.parse_args()
    rows = Rows("field")
    built_trees(rows)
    dataset = entailmentbank()
    lists_for_provers(rows, dataset, asked.lists)
    round_trips(rows, dataset)
    checks(rows)
    built_in_steps(rows, dataset)
    unseen_gold(rows, dataset)
    if asked.home is not None:
        beside_a_fleet(rows, asked.home, dataset)
    rows.finish()


if __name__ == "__main__":
    main()
