"""The paper's Figure 3, measured here: what the encoder finds, misses and takes wrongly, K = 20. `make figure3`.

For each encoder, over all pairs of a dev query with one of its 20 nearest premises or with a gold premise: TP found and
gold, FN gold and not found, FP found and not gold; the distributions of their token overlap (Jaccard of the lower-cased
word sets) and of their cosine by that encoder. The two tuned encoders are those of Table 1's rows, trained if need be.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aeenc.errors import AeencError
from benchmarks.harness.entailmentbank import entailmentbank, need_split
from benchmarks.harness.rows import ROOT
from benchmarks.tables.drawing import draw_distributions
from benchmarks.tables.research import Research, Unfinished, research
from benchmarks.tables.table_rows import FAITHFUL, ROUNDS, TML, K, version_of

RESULTS = ROOT / "docs" / "results"
MEASURES = ("token overlap", "cosine")
KINDS = ("TP", "FN", "FP")
TEXTS = 256  # a call
_WORD = re.compile(r"\w+")

Kinds = dict[str, NDArray[np.float64]]
Pair = tuple[str, str]


def untrained(running: Research) -> str:
    """The version of the pre-trained encoder."""
    return running.pretrained()


def gold_tuned(running: Research) -> str:
    """The version of row `tml-single`."""
    return version_of(running, "tml-single", {**FAITHFUL, "loss": TML}, 0)


def iterative(running: Research) -> str:
    """The best version of row `ae-enc-iterative`."""
    job = {**FAITHFUL, "loss": TML, "seed": 0}
    return running.loop("ae-enc-iterative-0", rounds=ROUNDS, run={"k": K}, job=job).best.version


SYSTEMS = {"untrained": untrained, "tuned on gold": gold_tuned, "iterative AE-Enc": iterative}


def pairs_by_kind(gold: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]]) -> dict[str, list[Pair]]:
    """All pairs of a query with what was found for it or should have been."""
    kinds: dict[str, list[Pair]] = {kind: [] for kind in KINDS}
    for query, premises in gold.items():
        first = set(found[query])
        kinds["TP"] += [(query, premise) for premise in premises if premise in first]
        kinds["FN"] += [(query, premise) for premise in premises if premise not in first]
        kinds["FP"] += [(query, premise) for premise in found[query] if premise not in set(premises)]
    return kinds


def overlap(pair: Pair) -> float:
    """The Jaccard index of two texts' words."""
    first, second = (set(_WORD.findall(text.lower())) for text in pair)
    return len(first & second) / len(first | second) if first | second else 0.0


def measure(running: Research, split: str, version: str) -> tuple[dict[str, Kinds], dict[str, Any]]:
    """The distributions of one version, and their summary."""
    running.serve(version)
    gold = {query.text: query.gold for query in running.dataset.queries(split)}
    texts = list(gold)
    hits = running.client.index.rankings(running.corpus, texts, k=K, version=version, drop_self=False).results
    kinds = pairs_by_kind(gold, {text: [hit.text for hit in own] for text, own in zip(texts, hits, strict=True)})
    queries = vectors_of(running, texts, "query", version)
    premises = vectors_of(running, list({p for pairs in kinds.values() for _, p in pairs}), "premise", version)
    values = {
        "token overlap": {kind: np.array([overlap(pair) for pair in pairs]) for kind, pairs in kinds.items()},
        "cosine": {
            kind: np.array([float(queries[query] @ premises[premise]) for query, premise in pairs])
            for kind, pairs in kinds.items()
        },
    }
    summary = {
        "version": version,
        "pairs": {kind: len(pairs) for kind, pairs in kinds.items()},
        **{
            name: {kind: {"mean": float(v.mean()), "sd": float(v.std())} for kind, v in by_kind.items()}
            for name, by_kind in values.items()
        },
    }
    return values, summary


def vectors_of(running: Research, texts: Sequence[str], role: str, version: str) -> dict[str, NDArray[np.float32]]:
    """The vector of each text; premises by the pre-trained encoder, whose space the index holds."""
    found: dict[str, NDArray[np.float32]] = {}
    for start in range(0, len(texts), TEXTS):
        part = texts[start : start + TEXTS]
        chosen = {"version": version} if role == "query" else {}
        encoded = running.client.encoder.encode(part, role=role, truncate=True, precision="float32", **chosen)
        found.update(zip(part, encoded.vectors, strict=True))
    return found


def page(summaries: Mapping[str, Any], reasons: Mapping[str, str], split: str) -> str:
    """The Markdown page."""
    lines = [f"# Figure 3, {split} split", ""]
    lines += [
        f"K = {K}, protocol `paper`. {_first_line()} `make figure3` writes this page and the picture.",
        "",
        f"![Distributions of TP, FN and FP](figure3-{split}.png)",
        "",
        "| encoder | TP | FN | FP | overlap TP | FN | FP | cosine TP | FN | FP |",
        f"|{'---|' * 10}",
    ]
    for name, one in summaries.items():
        counts = [f"{one['pairs'][kind]:,}" for kind in KINDS]
        means = [f"{one[measured][kind]['mean']:.3f}" for measured in MEASURES for kind in KINDS]
        lines.append(f"| {' | '.join([name, *counts, *means])} |")
    lines += ["", *(f"- {name}: not measured ({reason})" for name, reason in reasons.items())]
    return "\n".join(lines).rstrip() + "\n"


def _first_line() -> str:
    return (
        "TP: found and gold; FN: gold, not found; FP: found, not gold. Overlap: Jaccard index of the lower-cased "
        "words. Means of the distributions below."
    )


def measure_all(
    names: Sequence[str], split: str
) -> tuple[dict[str, dict[str, Kinds]], dict[str, dict[str, Any]], dict[str, str]]:
    """The distributions of encoders and their summaries, and why the others have none; all by name."""
    distributions, summaries, reasons = {}, {}, {}
    with research() as running:
        for name in names:
            try:
                distributions[name], summaries[name] = measure(running, split, SYSTEMS[name](running))
                print(f"{name}: {summaries[name]['pairs']}", flush=True)
            except (Unfinished, AeencError) as error:
                reasons[name] = str(error)
                print(f"{name} is not measured: {error}", flush=True)
    return distributions, summaries, reasons


def main() -> None:
    """Measures the encoders and writes page, picture and figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SYSTEMS), help="an encoder; repeatable")
    parser.add_argument("--split", default="dev")
    options = parser.parse_args()
    need_split(entailmentbank(), options.split)
    distributions, summaries, reasons = measure_all(options.only or list(SYSTEMS), options.split)
    if not distributions:
        sys.exit(f"nothing was measured; docs/results/figure3-{options.split}.* stay as they were")
    RESULTS.mkdir(parents=True, exist_ok=True)
    draw_distributions(distributions, MEASURES, RESULTS / f"figure3-{options.split}.png")
    record = {"format_version": 1, "split": options.split, "k": K, "systems": summaries}
    (RESULTS / f"figure3-{options.split}.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / f"figure3-{options.split}.md").write_text(page(summaries, reasons, options.split))


if __name__ == "__main__":
    main()
