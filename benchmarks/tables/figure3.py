"""The paper's Figure 3, measured here: what the encoder finds, misses and takes wrongly, K = 20. `make figure3`.

The pairs are those of the pre-trained encoder, whose 20 nearest premises of each query are TP where they are gold and
FP where they stand in no tree of the query; gold premises that are not among them are FN. For these same pairs: their
token overlap (Jaccard of the lower-cased word sets), and their cosine by each encoder, for all queries and unseen ones.
The tuned encoders are those of Table 1's rows, trained if need be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.cli.learning.evaluation import training_of
from aeenc.errors import AeencError
from aeenc.evaluation import word_overlap
from aeenc.trees import Tree
from benchmarks.harness.entailmentbank import entailmentbank, need_split
from benchmarks.tables.by_tree import group_of, resampled_means
from benchmarks.tables.drawing import draw_distributions
from benchmarks.tables.research import Research, Unfinished, research
from benchmarks.tables.table_records import RESULTS
from benchmarks.tables.table_rows import FAITHFUL, OURS, ROUNDS, TML, K, best_trained, version_of

KINDS = ("TP", "FN", "FP")
UNTRAINED = "untrained"
TEXTS = 256  # a call

Kinds = dict[str, NDArray[np.float64]]
Pair = tuple[str, str]
Summary = dict[str, dict[str, float]]
Interval = dict[str, float]


@dataclass(frozen=True)
class Encoder:
    """A version, and the round of its loop; 0: it has none."""

    version: str
    round: int = 0


Measured = tuple[Encoder, Kinds]  # an encoder, and the cosines of the pairs by it


def untrained(running: Research) -> Encoder:
    """The pre-trained encoder."""
    return Encoder(running.pretrained())


def gold_tuned(running: Research) -> Encoder:
    """The encoder of row `tml-single`."""
    return Encoder(version_of(running, "tml-single", {**FAITHFUL, "loss": TML}, 0))


def iterative(running: Research) -> Encoder:
    """The encoder of row `ae-enc-iterative`: that of the best trained round on dev."""
    job = {**FAITHFUL, "loss": TML, "seed": 0}
    best = best_trained(running.loop("ae-enc-iterative-0", rounds=ROUNDS, run={"k": K}, job=job), ROUNDS)
    return Encoder(best.version, best.number)


def ours(running: Research) -> Encoder:
    """The encoder of row `ours`."""
    return Encoder(version_of(running, "ours", OURS, 0))


SYSTEMS = {UNTRAINED: untrained, "tuned on gold": gold_tuned, "iterative AE-Enc": iterative, "ours": ours}


def pairs_by_kind(
    gold: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]], related: Mapping[str, Set[str]]
) -> dict[str, list[Pair]]:
    """The pairs of a query with what was found for it or should have been.

    `related` are the texts of a query's trees: one that is found and no gold premise of the query is of no kind.
    """
    kinds: dict[str, list[Pair]] = {kind: [] for kind in KINDS}
    for query, premises in gold.items():
        first = set(found[query])
        kinds["TP"] += [(query, premise) for premise in premises if premise in first]
        kinds["FN"] += [(query, premise) for premise in premises if premise not in first]
        known = {*premises, *related[query]}
        kinds["FP"] += [(query, premise) for premise in found[query] if premise not in known]
    return kinds


def related_of(trees: Sequence[Tree]) -> dict[str, set[str]]:
    """The texts of all trees in which a text is an inner node, by that text, its own among them."""
    related: dict[str, set[str]] = defaultdict(set)
    for tree in trees:
        texts = {tree.texts[label] for label in (*tree.children, *tree.leaves)}
        for label in tree.children:
            related[tree.texts[label]] |= texts
    return related


def pairs_of(running: Research, split: str) -> dict[str, list[Pair]]:
    """The pairs of a split by kind, as the pre-trained encoder finds them."""
    version = running.pretrained()
    running.serve(version)
    gold = {query.text: query.gold for query in running.dataset.queries(split)}
    hits = running.client.index.rankings(running.corpus, list(gold), k=K, version=version, drop_self=False).results
    found = {text: [hit.text for hit in own] for text, own in zip(gold, hits, strict=True)}
    return pairs_by_kind(gold, found, related_of(running.dataset.trees(split)))


def cosines(running: Research, version: str, pairs: Mapping[str, Sequence[Pair]]) -> Kinds:
    """The cosines of the pairs by a version, which it serves."""
    running.serve(version)
    texts, others = (list(dict.fromkeys(pair[side] for own in pairs.values() for pair in own)) for side in (0, 1))
    queries = vectors_of(running, texts, "query", version)
    premises = vectors_of(running, others, "premise", version)
    return {kind: np.array([queries[q] @ premises[p] for q, p in own], dtype=float) for kind, own in pairs.items()}


def vectors_of(running: Research, texts: Sequence[str], role: str, version: str) -> dict[str, NDArray[np.float32]]:
    """The vector of each text; premises by the pre-trained encoder, whose space the index holds."""
    found: dict[str, NDArray[np.float32]] = {}
    for start in range(0, len(texts), TEXTS):
        part = texts[start : start + TEXTS]
        chosen = {"version": version} if role == "query" else {}
        encoded = running.client.encoder.encode(part, role=role, truncate=True, precision="float32", **chosen)
        found.update(zip(part, encoded.vectors, strict=True))
    return found


def page(record: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """The Markdown page of what was measured, and why the rest was not."""
    split, systems, overlaps = record["split"], record["systems"], record["token overlap"]
    counts = ", ".join(f"{overlaps[kind]['pairs']:,} {kind}" for kind in KINDS)
    about = (
        f"{counts}: K = {K}, protocol `paper`, pairs by the pre-trained encoder. TP: found and gold; FN: gold, not "
        "found; FP: found, in no tree of the query. Overlap: Jaccard index of the lower-cased words. Means of the "
        "distributions below. Unseen queries: those that train does not have. Nearer: by how much FP - FN is smaller "
        "than with the untrained encoder, and the 95 % interval by groups of trees (bootstrap). Epochs and rounds of "
        "tuned encoders are chosen on dev. `make figure3` writes this page and the picture."
    )
    lines = [
        f"# Figure 3, {split} split",
        "",
        about,
        "",
        f"![Distributions of TP, FN and FP](figure3-{split}.png)",
        "",
        "| of the same pairs | TP | FN | FP | FP - FN | FP - FN, unseen queries | nearer |",
        "|---|---|---|---|---|---|---|",
        _line("token overlap", overlaps, record.get("unseen", {}), ""),
    ]
    for name, one in systems.items():
        chosen = f", best round on dev (round {one['round']})" if one["round"] else ""
        nearer = "{mean:.3f}, {low:.3f} to {high:.3f}".format(**one["nearer"]) if one.get("nearer") else ""
        lines.append(_line(f"cosine, {name}{chosen}", one["cosine"], one.get("unseen", {}), nearer))
    missing = {
        name: reasons.get(name, "`make figure3` trains and measures it") for name in SYSTEMS if name not in systems
    }
    lines += ["", *(f"- {name}: not measured ({reason})" for name, reason in missing.items())]
    return "\n".join(lines).rstrip() + "\n"


def _line(title: str, values: Summary, unseen: Summary, nearer: str) -> str:
    """A row of the page: three means, and how far apart the last two are."""
    cells = [f"{values[kind]['mean']:.3f}" if kind in values else "" for kind in KINDS]
    apart = [f"{one['FP']['mean'] - one['FN']['mean']:.3f}" for one in (values, unseen) if {"FP", "FN"} <= one.keys()]
    return f"| {' | '.join([title, *cells, *apart, *[''] * (2 - len(apart)), nearer])} |"


def measure_all(names: Sequence[str], split: str) -> tuple[dict[str, list[Pair]], dict[str, Measured], dict[str, str]]:
    """The pairs; what was measured by name; and why the others were not."""
    systems, reasons = {}, {}
    with research() as running:
        pairs = pairs_of(running, split)
        for name in names:
            try:
                encoder = SYSTEMS[name](running)
                systems[name] = encoder, cosines(running, encoder.version, pairs)
                print(f"{name}: measured", flush=True)
            except (Unfinished, AeencError) as error:
                reasons[name] = str(error)
                print(f"{name} is not measured: {error}", flush=True)
    return pairs, systems, reasons


def summary(values: Kinds) -> Summary:
    """The number, mean and standard deviation of each distribution that has a value."""
    kinds = {kind: own for kind, own in values.items() if len(own)}
    return {kind: {"pairs": len(v), "mean": float(v.mean()), "sd": float(v.std())} for kind, v in kinds.items()}


def without_seen(values: Kinds, pairs: Mapping[str, Sequence[Pair]], learned: Set[str]) -> Kinds:
    """Keeps the values of the pairs whose query train does not have."""
    return {kind: own[[query not in learned for query, _ in pairs[kind]]] for kind, own in values.items()}


def nearer(before: Kinds, after: Kinds, pairs: Mapping[str, Sequence[Pair]], groups: Mapping[str, int]) -> Interval:
    """How much less FP - FN, a difference of mean cosines, is after than before; with its 95 % interval by group."""
    moved = {kind: before[kind] - after[kind] for kind in ("FP", "FN")}
    group = {kind: np.array([groups[query] for query, _ in pairs[kind]]) for kind in moved}
    number = max(groups.values()) + 1
    drawn = {kind: resampled_means(group[kind], moved[kind], number) for kind in moved}
    low, high = np.nanpercentile(drawn["FP"] - drawn["FN"], [2.5, 97.5])
    return {"mean": float(moved["FP"].mean() - moved["FN"].mean()), "low": float(low), "high": float(high)}


def told_of(
    systems: Mapping[str, Measured],
    pairs: Mapping[str, Sequence[Pair]],
    learned: Set[str],
    groups: Mapping[str, int],
) -> dict[str, dict[str, Any]]:
    """Summarises each system for the record.

    Queries in `learned` are train's; `groups` maps each query to its group of trees.
    """
    before = systems[UNTRAINED][1] if UNTRAINED in systems else None
    told: dict[str, dict[str, Any]] = {}
    for name, (encoder, found) in systems.items():
        unseen = summary(without_seen(found, pairs, learned))
        told[name] = {**asdict(encoder), "cosine": summary(found), "unseen": unseen}
        if before is not None and name != UNTRAINED and pairs["FN"] and pairs["FP"]:
            told[name]["nearer"] = nearer(before, found, pairs, groups)
    return told


def main() -> None:
    """Measures the encoders and writes page, picture and figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SYSTEMS), help="an encoder; repeatable")
    parser.add_argument("--split", default="dev")
    options = parser.parse_args()
    dataset = entailmentbank()
    need_split(dataset, options.split)
    path = RESULTS / f"figure3-{options.split}.json"
    names = dict.fromkeys([UNTRAINED, *(options.only or SYSTEMS)])  # with which the others are compared
    pairs, systems, reasons = measure_all(list(names), options.split)
    if not systems:
        sys.exit(f"nothing was measured; docs/results/{path.stem}.* stay as they were")
    RESULTS.mkdir(parents=True, exist_ok=True)
    overlaps = {kind: np.array([word_overlap(*pair) for pair in own]) for kind, own in pairs.items()}
    learned = {text for text, _ in training_of(dataset, options.split)}
    record: dict[str, Any] = {"format_version": 1, "split": options.split, "k": K, "token overlap": summary(overlaps)}
    record["unseen"] = summary(without_seen(overlaps, pairs, learned))
    kept = json.loads(path.read_bytes()) if path.is_file() else {}
    same_pairs = kept.get("token overlap") == record["token overlap"]
    told = told_of(systems, pairs, learned, group_of(dataset.trees(options.split)))
    record["systems"] = {**(kept["systems"] if same_pairs else {}), **told}
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(record, reasons))
    if systems.keys() == record["systems"].keys():  # else the picture, which needs every pair, stays
        of_encoders = {f"cosine, {name}": found for name, (_, found) in systems.items()}
        draw_distributions({"token overlap": overlaps, **of_encoders}, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
