"""Simulated annotators: does retrieval that follows the encoder save reading? `make bench NAME=annotators`.

    trees in some order ─▶ a person reads candidates of each node, until they have what explains it ─▶ pairs ─▶ train
          ▲                                                                                                    │
          └── `live`: the next stage retrieves by the encoder just trained; `static`: by the pre-trained one ◀─┘

Each arm reads the same number of candidates a stage, and trains the same job on all its pairs so far. `searching` is
`live`, and a person who lacks a premise that they were not shown searches for two of its words, and reads what that
finds up to the premise: they know it, so this is an upper bound. It is compared with `live` over its own orders. People
miss one gold premise in ten, and accept one near hit in a hundred. After each stage the encoder is measured: candidates
to read for each completed tree among 200 trees that nobody has judged, and strict MAP and Hit@50 on dev.

What is measured is kept in `benchmarks/results/annotators-measured.json`; a run that is broken off goes on. Needs
EntailmentBank in `data/entailmentbank`, or in the directory of AEENC_BENCH_DATA. About two hours on two cores.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aeenc import values
from aeenc.trees import Tree
from benchmarks.harness.entailmentbank import check_there
from benchmarks.harness.rows import RESULTS, Rows
from benchmarks.tables.research import Research, research

K = 20
NEAR = 10  # ranks whose hits are near
MISSES, FALSE_ACCEPTS = 0.10, 0.01
STAGES, STAGE_READ = 3, 4000
NEXT, NEXT_FROM = 200, 800  # trees that nobody judges, from a position of the order on
SEARCH_K = 10
CALL_TEXTS = 128
JOB: Mapping[str, Any] = {
    "loss": "LOSS_FULL_CORPUS_SOFTMAX",
    "temperature": 0.03,
    "learning_rate": 1e-4,
    "batch_size": 64,
    "epochs": 4,
    "initial_share": 0.05,
}
MEASURED = RESULTS / "annotators-measured.json"


@dataclass(frozen=True)
class Node:
    """A query of a tree, with the texts that explain it and those that may not be candidates."""

    query: str
    gold: frozenset[str]
    excluded: frozenset[str]


@dataclass
class Judged:
    """What an annotator has read and said so far."""

    read: int = 0
    trees: int = 0
    gold: int = 0
    found: int = 0
    pairs: dict[tuple[str, str], values.Pair] = field(default_factory=dict)


Hits = Sequence[tuple[str, str]]  # id and text of premises, best first


def nodes_of(tree: Tree) -> list[Node]:
    """The nodes of a gold tree, the root first."""
    above: dict[str, frozenset[str]] = {}
    nodes = []
    for label, children in tree.children.items():
        path = above.get(label, frozenset()) | {tree.texts[label]}
        above.update(dict.fromkeys(children, path))
        gold = frozenset(tree.texts[child] for child in children) - path
        nodes.append(Node(tree.texts[label], gold, path))
    return nodes


class World:
    """Retrieval by a version, with what was retrieved before kept."""

    def __init__(self, running: Research) -> None:
        self._running = running
        self._served = ""
        self._hits: dict[str, Hits] = {}
        self._searched: dict[str, Hits] = {}
        self.words = Counter(word for text in running.dataset.facts.values() for word in set(_words(text)))

    def serve(self, version: str) -> None:
        """Retrieves by this version from now on."""
        if version != self._served:
            self._running.serve(version)
            self._served, self._hits = version, {}

    def candidates(self, nodes: Sequence[Node]) -> list[Hits]:
        """The first K premises of each node, without its query and ancestors."""
        missing = list(dict.fromkeys(node.query for node in nodes if node.query not in self._hits))
        for start in range(0, len(missing), CALL_TEXTS):
            texts = missing[start : start + CALL_TEXTS]
            found = self._running.client.index.retrieve(
                self._running.corpus, texts, k=K + 10, version=self._served, truncate=True
            )
            self._hits |= {
                text: [(hit.id, hit.text) for hit in hits] for text, hits in zip(texts, found.results, strict=True)
            }
        return [[hit for hit in self._hits[node.query] if hit[1] not in node.excluded][:K] for node in nodes]

    def search(self, premise: str) -> Hits:
        """What a search for the two rarest words of a premise finds."""
        words = sorted(set(_words(premise)), key=lambda word: (self.words[word], word))[:2]
        text = " ".join(words) or premise
        if text not in self._searched:
            found = self._running.client.index.retrieve(self._running.corpus, [text], k=SEARCH_K, mode="lexical")
            self._searched[text] = [(hit.id, hit.text) for hit in found.results[0]]
        return self._searched[text]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]{3,}", text.lower())


def judge(node: Node, hits: Hits, chance: random.Random, judged: Judged, world: World | None = None) -> None:
    """One person reads a node's candidates until they have accepted all that explains it, or to the end.

    With a world, they then search for each premise that was not among them, and read up to it, or to the end.
    """
    accepted: set[str] = set()
    for rank, (premise_id, text) in enumerate(hits, start=1):
        judged.read += 1
        slips = chance.random()
        says = slips >= MISSES if text in node.gold else rank <= NEAR and slips < FALSE_ACCEPTS
        _note(judged, node, premise_id, text, rank=rank, explains=says)
        if says and text in node.gold:
            accepted.add(text)
        if accepted == node.gold:
            break
    if world is not None:
        shown = {text for _, text in hits}
        for missing in sorted(node.gold - accepted - shown):
            for premise_id, text in world.search(missing):
                judged.read += 1
                if text == missing:
                    _note(judged, node, premise_id, text, rank=0, explains=True)
                    accepted.add(text)
                    break
    judged.gold += len(node.gold)
    judged.found += len(accepted)


def _note(judged: Judged, node: Node, premise_id: str, text: str, *, rank: int, explains: bool) -> None:
    sign = values.PairSign.POSITIVE if explains else values.PairSign.NEGATIVE
    origin = values.Provenance(rank=rank, annotator="simulated")
    judged.pairs[node.query, text] = values.Pair(
        query=node.query, premise_id=premise_id, premise=text, sign=sign, provenance=origin
    )


def reading(trees: Sequence[Tree], world: World) -> dict[str, float]:
    """Candidates that somebody who never errs reads for each tree of which they complete all nodes."""
    nodes = [nodes_of(tree) for tree in trees]
    found = iter(world.candidates([node for of_tree in nodes for node in of_tree]))
    read, complete = 0, 0
    for of_tree in nodes:
        whole = True
        for node in of_tree:
            ranks = [rank for rank, (_, text) in enumerate(next(found), start=1) if text in node.gold]
            whole &= len(ranks) == len(node.gold)
            read += ranks[-1] if len(ranks) == len(node.gold) else K
        complete += whole
    return {"read_per_completed": read / max(complete, 1), "completed": complete / len(trees)}


def quality(running: Research, world: World, ahead: Sequence[Tree], version: str) -> dict[str, float]:
    """Measures a version on the trees ahead and on dev."""
    world.serve(version)
    strict = running.evaluate("dev", version=version, strict_only=True)["strict"]
    return {**reading(ahead, world), "MAP": strict["MAP"], "Hit@50": strict["Hit@50"]}


def in_order(running: Research, order: int) -> list[Tree]:
    """The trees of train in an order."""
    trees = list(running.dataset.trees("train"))
    random.Random(f"order {order}").shuffle(trees)
    return trees


def stages(
    running: Research, world: World, order: int, seed: int, arm: str, kept: dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each stage of an arm, with what is measured after it."""
    trees = in_order(running, order)
    ahead = trees[NEXT_FROM : NEXT_FROM + NEXT]
    version, pretrained = running.pretrained(), running.pretrained()
    judged, position = Judged(), 0
    for stage in range(1, STAGES + 1):
        world.serve(pretrained if arm == "static" else version)
        while judged.read < stage * STAGE_READ:
            nodes = nodes_of(trees[position])
            for number, (node, hits) in enumerate(zip(nodes, world.candidates(nodes), strict=True)):
                chance = random.Random(f"{order} {seed} {position} {number}")
                judge(node, hits, chance, judged, world if arm == "searching" else None)
            position += 1
        assert position <= NEXT_FROM, "people have reached the trees that nobody is to judge"
        judged.trees = position
        # The first stage of `static` and `live` is the same, and so are its pairs, run and job.
        # Searching cost no reading once: what was measured then has another key.
        told = {"searching": "searching-read"}.get(arm, "both" if stage == 1 else arm)
        key = f"annotators-{order}-{seed}-{told}-{stage}"
        pairs = list(judged.pairs.values())
        imported = running.client.sampler.import_pairs(running.corpus, pairs, request_id=f"{key}-{running.corpus}")
        job = {**JOB, "run_ids": [imported.run_id], "seed": seed}
        version = str(running.train(key, job).version)
        if key not in kept:
            kept[key] = {
                **quality(running, world, ahead, version),
                "read": judged.read,
                "trees": judged.trees,
                "found": judged.found / judged.gold,
                "positives": sum(pair.sign is values.PairSign.POSITIVE for pair in pairs),
                "negatives": sum(pair.sign is values.PairSign.NEGATIVE for pair in pairs),
            }
            RESULTS.mkdir(exist_ok=True)
            MEASURED.write_text(json.dumps(kept, indent=1))
        yield stage, kept[key]


def untrained(running: Research, world: World, order: int, kept: dict[str, Any]) -> dict[str, Any]:
    """The pre-trained encoder on the trees ahead and on dev."""
    key = f"annotators-{order}-untrained"
    if key not in kept:
        ahead = in_order(running, order)[NEXT_FROM : NEXT_FROM + NEXT]
        kept[key] = quality(running, world, ahead, running.pretrained())
    return dict(kept[key])


def mean(found: Sequence[Mapping[str, float]], name: str) -> float:
    """The mean of a figure over orders and seeds."""
    return statistics.fmean(one[name] for one in found)


def report(curves: Mapping[str, Mapping[int, Sequence[Mapping[str, float]]]], rows: Rows) -> None:
    """A row for each arm and figure after the last stage, beside the pre-trained encoder's."""
    start = curves["untrained"][0]  # of the same orders and seeds, in the same order, as each arm's runs
    units = {"read_per_completed": "premises", "completed": "share", "MAP": "MAP", "Hit@50": "share", "found": "share"}
    for arm in ("static", "live", "searching"):
        if STAGES in curves.get(arm, {}):
            last = curves[arm][STAGES]
            for name, unit in units.items():
                baseline = mean(start[: len(last)], name) if name in start[0] else None
                rows.note(
                    f"{arm}: {name} after {STAGES * STAGE_READ:,} read ({len(last)} runs)",
                    mean(last, name),
                    unit,
                    baseline,
                )
    for arm, other in (("live", "static"), ("searching", "live")):
        if all(STAGES in curves.get(one, {}) for one in (arm, other)):
            compare(arm, curves[arm][STAGES], other, curves[other][STAGES], rows)


def compare(
    arm: str, runs: Sequence[Mapping[str, float]], other: str, others: Sequence[Mapping[str, float]], rows: Rows
) -> None:
    """A row for each gain of an arm over another, whose first runs are of the same orders and seeds."""
    others = others[: len(runs)]
    for name in ("read_per_completed", "MAP", "Hit@50", "found"):
        gains = [one[name] - before[name] for one, before in zip(runs, others, strict=True)]
        spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
        rows.note(
            f"{arm} less {other}: {name}, mean (standard deviation) of {len(gains)} runs",
            f"{statistics.fmean(gains):+.4g} ({spread:.2g})",
            "",
            mean(others, name),
        )


def main() -> None:
    """Runs all arms, orders and seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=3, help="orders of the trees")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of mistakes and training")
    parser.add_argument("--searching-orders", type=int, default=1, help="orders in which people search, too")
    parser.add_argument("--arms", default="static,live,searching", help="arms, separated by commas")
    options = parser.parse_args()
    check_there()
    kept: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    curves: dict[str, dict[int, list[dict[str, float]]]] = {}
    with research() as running:
        world = World(running)
        for order in range(options.orders):
            for seed in range(options.seeds):
                start = untrained(running, world, order, kept)
                curves.setdefault("untrained", {}).setdefault(0, []).append(start)
                for arm in options.arms.split(","):
                    if arm == "searching" and order >= options.searching_orders:
                        continue
                    for stage, found in stages(running, world, order, seed, arm, kept):
                        curves.setdefault(arm, {}).setdefault(stage, []).append(found)
                        print(f"  order {order}, seed {seed}, {arm}, stage {stage}: {found}", flush=True)
    rows = Rows("annotators")
    report(curves, rows)
    rows.finish()


if __name__ == "__main__":
    main()
