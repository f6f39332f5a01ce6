"""Where the paper's jump in MAP may come from: the query's own text. `make own-text`, one system by `--only NAME`.

The paper ranks a query's own text among its premises (protocol `paper`), so that it mostly stands first. A system whose
MAP jumps while its Hit@10 does not has moved it down, or left it out:

    f = (MAP - MAP with own text first) / (MAP without own text - MAP with own text first)

0: own text stands first; 1: it is as good as dropped. Systems learn it as a refused premise (`own_text` NEGATIVE); drop
rules leave it out for some queries, over ranks that are there already. Each measured system is kept in
docs/results/own-text-SPLIT.json and not measured again; own-text-SPLIT.md shows them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aeenc.evaluation import gold_of, metrics_of
from aeenc.trees import Dataset
from aeenc.trees.tree import ROOT
from benchmarks.harness.entailmentbank import entailmentbank, need_split
from benchmarks.tables.by_tree import AP, BY_QUERY, FACTS, UNSEEN, by_query, difference, jump, means_of, own_is_premise
from benchmarks.tables.research import EVALUATE_S, Research, Unfinished, research
from benchmarks.tables.table_records import RESULTS
from benchmarks.tables.table_rows import BOTH_SIDES, FAITHFUL, LITERAL, OURS, SCL, TML, K, version_of
from benchmarks.tables.table_text import PARTS

Ranks = Sequence[int]
_TML: Mapping[str, Any] = {**FAITHFUL, "loss": TML}
_DUAL: Mapping[str, Any] = {**BOTH_SIDES, "loss": TML, "mode": "MODE_DUAL", "epochs": 2}
_NEGATIVE: Mapping[str, Any] = {"own_text": "OWN_TEXT_NEGATIVE"}

UNTRAINED, EXCLUDED = "untrained", "single TML, EXCLUDED"

Trained = Callable[[Research], str]  # the version of a system, trained unless it was before


def _job(name: str, fields: Mapping[str, Any]) -> Trained:
    return lambda running: str(running.train(f"own-text-{name}", {**fields, "seed": 0}).version)


def _one_round(key: str, fields: Mapping[str, Any]) -> Trained:
    return lambda running: running.loop(key, rounds=1, run={"k": K}, job={**fields, "seed": 0}).rounds[1].version


_JOBS: Mapping[str, Mapping[str, Any]] = {
    **{
        f"single softmax, one epoch, {told}, weight {weight:g}": {
            **OURS,
            **own_text,
            "epochs": 1,
            "refused_weight": weight,
        }
        for told, own_text in (("EXCLUDED", {}), ("NEGATIVE", _NEGATIVE))
        for weight in (20.0, 5.0, 1.0)
    },
    "single TML, NEGATIVE": {**_TML, **_NEGATIVE},
    "single SCL, NEGATIVE": {**FAITHFUL, "loss": SCL, **_NEGATIVE},
    **{
        f"dual TML, NEGATIVE, regularization {weight:g}": {**_DUAL, **_NEGATIVE, "regularization": weight}
        for weight in (0.0, 0.1)
    },
    "single TML, one epoch of the paper's steps, NEGATIVE": {**LITERAL, **_NEGATIVE, "epochs": 1},
}
# In the order of the page. Those with own text excluded but for the softmax are also rows of Table 1, trained once.
SYSTEMS: Mapping[str, Trained] = {
    UNTRAINED: Research.pretrained,
    EXCLUDED: lambda running: version_of(running, "tml-single", _TML, 0),
    "AE-Enc, one round, EXCLUDED": _one_round("ae-enc-iterative-0", _TML),
    "AE-Enc, one round, NEGATIVE": _one_round("own-text-ae-enc", {**_TML, **_NEGATIVE}),
    **{name: _job(name, fields) for name, fields in _JOBS.items()},
}


@dataclass(frozen=True)
class Query:
    """A query's gold ranks, its own text dropped (`strict`) and kept (`paper`), and what its own text is.

    `candidate`: the own text is a premise, too. `fact`: of the fact file. `below_root`: a child of a hypothesis.
    `shared`: a premise in two or more trees. `in_half`: of a random half of the queries.
    """

    strict: Ranks
    paper: Ranks
    candidate: bool
    fact: bool = False
    below_root: bool = False
    shared: bool = False
    in_half: bool = False


Rule = Callable[[Query], bool]
KEPT, DROPPED = "kept (protocol `paper`)", "dropped (protocol `strict`)"
RULES: Mapping[str, Rule] = {
    KEPT: lambda _: False,
    "dropped for a random half": lambda query: query.in_half,
    "dropped, except for children of roots": lambda query: not query.below_root,
    "dropped for children of roots only": lambda query: query.below_root,
    "dropped, except where the fact file has it": lambda query: not query.fact,
    "dropped, except where two trees have it": lambda query: not query.shared,
    "dropped by id: except where another id has the text": lambda query: not (query.fact or query.shared),
    DROPPED: lambda _: True,
}


def f_of(queries: Sequence[Query], found: float) -> float:
    """The jump of a MAP over these queries."""
    return jump([query.strict for query in queries], [query.candidate for query in queries], found)


def scored(queries: Sequence[Query], rule: Rule) -> dict[str, float]:
    """MAP, Hit@10 and f where the rule says for which queries the own text is dropped."""
    ranks = [query.strict if rule(query) else query.paper for query in queries]
    metrics = metrics_of([np.array(own) for own in ranks if len(own)])
    found = metrics.to_dict()
    return {"MAP": found["MAP"], "Hit@10": found["Hit@10"], "f": f_of(queries, found["MAP"])}


def queries_of(dataset: Dataset, split: str, ranks: Sequence[tuple[Ranks, Ranks]]) -> list[Query]:
    """The queries of a split with their (strict, paper) ranks, in the data set's order."""
    facts = set(dataset.facts.values())
    trees = [tree for name in dataset.splits for tree in dataset.trees(name)]
    below = {tree.texts[child] for tree in trees for child in tree.children[ROOT]}
    once: set[str] = set()
    shared: set[str] = set()
    for tree in trees:
        texts = {tree.texts[label] for children in tree.children.values() for label in children}
        shared |= once & texts
        once |= texts
    half = np.random.default_rng(0).random(len(ranks)) < 0.5
    return [
        Query(
            strict,
            paper,
            candidate=is_premise,
            fact=one.text in facts,
            below_root=one.text in below,
            shared=one.text in shared,
            in_half=bool(chosen),
        )
        for one, (strict, paper), is_premise, chosen in zip(
            dataset.queries(split), ranks, own_is_premise(dataset, split), half, strict=True
        )
    ]


def measure(running: Research, split: str, name: str) -> list[tuple[list[int], list[int]]]:
    """The ranks, strict and paper, of each query by a system, which is trained unless it was before."""
    version = SYSTEMS[name](running)
    running.serve(version)
    report = running.client.trainer.evaluate(
        running.corpus, gold_of(running.dataset, split), version=version, ranks=True, timeout_s=EVALUATE_S
    )
    return [(list(one.strict), list(one.paper)) for one in report.ranks]


def page(dataset: Dataset, split: str, systems: Mapping[str, Any]) -> str:
    """The Markdown page."""
    by_name = {name: queries_of(dataset, split, ranks) for name, ranks in systems.items()}
    own = [query for query in next(iter(by_name.values())) if query.candidate]
    total = len(next(iter(by_name.values())))
    about = (
        f"{len(own)} of {total} queries are premises, too. f: 0 where the own text stands before all premises, 1 where "
        "it is dropped. Weight: that of all refused premises, own text among them. `make own-text` measures what is "
        "missing and writes this page; one seed; epochs chosen on dev."
    )
    lines = [
        f"# The query's own text, {split} split",
        "",
        about,
        "",
        "## Learnt: `own_text` NEGATIVE beside EXCLUDED",
        "",
        "| system | strict MAP | strict Hit@10 | paper MAP | paper Hit@10 | f |",
        "|---|---|---|---|---|---|",
    ]
    for name, queries in by_name.items():
        strict, paper = scored(queries, RULES[DROPPED]), scored(queries, RULES[KEPT])
        cells = [strict["MAP"], strict["Hit@10"], paper["MAP"], paper["Hit@10"], paper["f"]]
        lines.append(f"| {name} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    lines += _harder(dataset, split, {name: [strict for strict, _ in ranks] for name, ranks in systems.items()})
    lines += ["", "## Left out by a rule of the evaluation", "", "MAP, Hit@10 and f of each system by rule.", ""]
    lines += [f"| own text is | {' | '.join(by_name)} |", f"|---|{'---|' * len(by_name)}"]
    for title, rule in RULES.items():
        found = [scored(queries, rule) for queries in by_name.values()]
        told = [f"{one['MAP']:.3f}, {one['Hit@10']:.3f}, {one['f']:.2f}" for one in found]
        lines.append(f"| {title} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def _harder(dataset: Dataset, split: str, strict: Mapping[str, Sequence[Ranks]]) -> list[str]:
    """The table of unseen queries and facts alone, and each system's difference from the untrained one, by tree."""
    reports = {name: {BY_QUERY: by_query(dataset, split, ranks)} for name, ranks in strict.items()}
    lines = ["", "## Unseen queries, facts alone, and differences by tree, protocol `strict`", "", PARTS, ""]
    lines += ["| system | MAP | unseen queries | facts alone | over untrained | 95 % interval | p |", f"|{'---|' * 7}"]
    for name, report in reports.items():
        means = means_of(report[BY_QUERY])
        cells = [f"{means[part]:.3f}" if part in means else "" for part in (AP, UNSEEN, FACTS)]
        found = difference([report], [reports[UNTRAINED]] if name != UNTRAINED and UNTRAINED in reports else [])
        told = [f"{found.mean:+.3f}", f"{found.low:+.3f} to {found.high:+.3f}", f"{found.p:.4f}"] if found else [""] * 3
        lines.append(f"| {name} | {' | '.join(cells + told)} |")
    return lines


def main() -> None:
    """Measures the systems that are missing, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SYSTEMS), help="a system; repeatable")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the page")
    options = parser.parse_args()
    dataset = entailmentbank()
    need_split(dataset, options.split)
    path = RESULTS / f"own-text-{options.split}.json"
    kept: dict[str, Any] = {"format_version": 1, "systems": {}}
    if path.is_file():
        kept = json.loads(path.read_bytes())
    left = [name for name in options.only or SYSTEMS if name not in kept["systems"]]
    if left and not options.render:
        with research() as running:
            for name in left:
                try:
                    kept["systems"][name] = measure(running, options.split, name)
                except Unfinished as error:
                    print(f"{name} is not measured: {error}", flush=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(kept) + "\n")
                print(f"{name}: measured", flush=True)
    if kept["systems"]:
        systems = {name: kept["systems"][name] for name in SYSTEMS if name in kept["systems"]}
        (RESULTS / f"own-text-{options.split}.md").write_text(page(dataset, options.split, systems))


if __name__ == "__main__":
    main()
