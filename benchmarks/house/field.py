"""`make bench NAME=field`: what the field takes from and gives to this project, against its own figures.

    make bench NAME=field                          all of it that needs no fleet; seconds
    make bench NAME=field ARGS='--home .aeenc'     also aeenc.local over the largest corpus of a fleet
    make bench NAME=field ARGS='--lists FILE'      also a file of `aeenc export task3` for split dev

Built trees: the published predictions of EntailmentBank's dev (folder `predictions` beside `dataset`), by `score_trees`
and by the published scorer without BLEURT. Lists: the share of dev's leaves that those of a prover's input have, beside
the published lists of Task 3 and the ceiling of the fact file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from aeenc.evaluation import (
    gold_of,
    grades_of,
    leaf_recall,
    load_data,
    mean_scores,
    normalised,
    read_predictions,
    score_trees,
)
from aeenc.exports import conclusions_of, gold_judgements, write_beir
from aeenc.files.lines import text_lines
from aeenc.trees import Dataset, read_trees
from aeenc.trees.files import parse_context
from benchmarks.harness.entailmentbank import DATA, entailmentbank
from benchmarks.harness.rows import Rows
from services.corpus.active import read_active
from services.corpus.generation import corpora_of, open_generation
from services.store.artifacts import ArtifactStore

SPLIT = "dev"
TOLERANCE = 1e-6
RUNS, FIRST_ANSWER_S = 5, 2.0
RECALL, ALL_CORRECT = 0.78, 0.48  # by normalised text, of lists for provers


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


def in_one_process(rows: Rows, home: Path) -> None:
    """From `import aeenc.local` to the first answer, in new processes, over the largest corpus of a home."""
    store = ArtifactStore(home / "artifacts")
    active = {name: found for name in corpora_of(store) if (found := read_active(store, name))}
    sizes = {name: len(open_generation(store, name, found).premises) for name, found in active.items()}
    corpus = max(sizes, key=sizes.__getitem__)
    code = (
        "import time; started = time.perf_counter(); import aeenc.local; "
        f"aeenc.local.open({str(home)!r}).retrieve({corpus!r}, ['a magnet attracts an iron nail']); "
        "print(time.perf_counter() - started)"
    )
    took = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(RUNS)]
    rows.note("aeenc.local: premises", sizes[corpus], "")
    rows.at_most(f"aeenc.local: import to first answer, best of {RUNS}", min(took), "s", FIRST_ANSWER_S)


def lists_of(file: Path) -> Iterator[list[str]]:
    """The sentences of each line, in the order of the split's trees."""
    for _, line in text_lines(file):
        yield list(parse_context(json.loads(line)["context"]).values())


def main() -> None:
    """Measures what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", type=Path, nargs="*", default=[], help="files of `aeenc export task3` for dev")
    parser.add_argument("--home", type=Path, help="the home of an `aeenc up` with a corpus, for aeenc.local")
    asked = parser.parse_args()
    rows = Rows("field")
    built_trees(rows)
    dataset = entailmentbank()
    lists_for_provers(rows, dataset, asked.lists)
    round_trips(rows, dataset)
    if asked.home is not None:
        in_one_process(rows, asked.home)
    rows.finish()


if __name__ == "__main__":
    main()
