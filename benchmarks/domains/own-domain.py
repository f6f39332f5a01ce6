"""`make bench NAME=own-domain`: what 50 judged hypotheses gain in ten made-up domains, as a user would get it.

Each cell is a domain and a seed: facts into an index, 50 hypotheses judged by an oracle over gRPC (depth 0, k 100), a
job with all defaults, test MAP before and after. Facts are unseen if they explain no judged hypothesis (the report's
part PREMISE_UNSEEN, whose rankings leave the other gold facts out). Harm is what the same encoder loses on the bundled
sample, whose corpus it never saw. Beside them: 50 drawn hypotheses of EntailmentBank's train split, measured on dev.
Finished cells are kept, and another call goes on; `ARGS=--again` forgets them. `--only NAME`, `--seeds N`, `--draws N`,
`--minutes N`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

import aeenc
from aeenc import values
from aeenc.trees import Dataset
from benchmarks.domains import generators
from benchmarks.domains.generators import GENERATORS, JUDGED, domain
from benchmarks.harness.entailmentbank import DATA
from benchmarks.harness.kept_fleet import kept_fleet
from benchmarks.harness.rows import ROOT, Rows
from services.store.files import atomic_write

SAMPLE = ROOT / "data" / "sample"
HOME = ROOT / ".aeenc" / "bench" / "own-domain"
LABEL = "own-domain"
K = 100  # judged facts of a hypothesis
Gold = Sequence[tuple[str, Sequence[str]]]
Cell = dict[str, Any]


class Knows(aeenc.Oracle):
    """Accepts the facts that explain the hypotheses of the cell in hand."""

    name = "own"
    explained: Mapping[str, Collection[str]] = {}

    def judge(self, task: aeenc.Task) -> list[str]:
        """Returns the candidates that explain."""
        return [candidate.id for candidate in task.candidates if candidate.text in self.explained.get(task.query, ())]


@contextmanager
def served(oracle: aeenc.Oracle) -> Iterator[str]:
    """Serves an oracle in a thread of its own during the block; gives its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(oracle.start(), loop).result()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


class Measured:
    """Trains on what an oracle has judged, and measures the encoder before and after."""

    def __init__(self, client: aeenc.Client, oracle: Knows) -> None:
        self._client, self._oracle = client, oracle
        self._sample = [(query.text, query.gold) for query in Dataset.load(SAMPLE).queries("dev")]
        self.build("science", [candidate.text for candidate in Dataset.load(SAMPLE).candidates()])
        self._sample_before = self._report("science", self._sample, "stable").strict.map

    def build(self, corpus: str, facts: Sequence[str]) -> None:
        """Builds a corpus that is not there yet."""
        if corpus not in {found.corpus for found in self._client.index.list_corpora()}:
            self._client.index.build(corpus, facts)

    def cell(self, corpus: str, judged: Gold, test: Gold, seed: int) -> Cell:
        """Judges, trains and measures once. All options of the job but its seed are the defaults of `aeenc train`."""
        began = time.monotonic()
        self._oracle.explained = dict(judged)
        hypotheses = [(str(n), text) for n, (text, _) in enumerate(judged)]
        sampler, trainer, registry = self._client.sampler, self._client.trainer, self._client.registry
        run = sampler.wait(sampler.start_run(hypotheses, corpus=corpus, oracle="own", k=K, max_depth=0).id)
        job = trainer.wait(trainer.start_job(corpus=corpus, run_ids=[run.id], split="train", seed=seed).id)
        if job.state != values.WorkState.SUCCEEDED:
            raise SystemExit(f"{corpus}, seed {seed}: {job.error}")
        registry.publish(job.version, label=LABEL, wait_s=120, force=True)
        reports = [self._report(corpus, test, label, judged) for label in ("stable", LABEL)]
        sample_after = self._report("science", self._sample, LABEL).strict.map
        registry.delete_label(LABEL)
        trainer.delete_checkpoint(job.version)
        gain = job.progress.gain
        return {
            "map": [report.strict.map for report in reports],
            "unseen": [unseen_map(report) for report in reports],
            "harm": self._sample_before - sample_after,
            "told": gain.outcome.name if gain.outcome else "",
            "held_back": [gain.queries, gain.version_map, gain.candidate_map, gain.p_better],
            "epochs": job.progress.epochs_done,
            "positives": job.progress.positives,
            "seconds": round(time.monotonic() - began),
        }

    def _report(self, corpus: str, gold: Gold, label: str, training: Gold = ()) -> values.EvaluationReport:
        return self._client.trainer.evaluate(corpus, gold, label=label, training=training, strict_only=True)


def unseen_map(report: values.EvaluationReport) -> float:
    """Returns the strict MAP of the gold facts that explain nothing that was judged; no others are candidates."""
    [part] = [one for one in report.parts if one.kind == values.EvaluationPartKind.PREMISE_UNSEEN]
    return part.strict.map if part.strict else 0.0


def domain_cell(measured: Measured, name: str, seed: int) -> Cell:
    """Measures one domain."""
    drawn, corpus = domain(name, seed), f"{name}-{seed}"
    measured.build(corpus, drawn.facts)
    return measured.cell(corpus, drawn.judged, drawn.test, seed)


def bank_cell(measured: Measured, bank: Dataset, draw: int) -> Cell:
    """Measures one draw of EntailmentBank's train hypotheses, on dev."""
    hypotheses = {tree.hypothesis for tree in bank.trees("train")}
    gold = [(query.text, query.gold) for query in bank.queries("train") if query.text in hypotheses]
    measured.build("entailmentbank", [candidate.text for candidate in bank.candidates()])
    dev = [(query.text, query.gold) for query in bank.queries("dev")]
    return measured.cell("entailmentbank", Random(draw).sample(gold, JUDGED), dev, draw)


def add_rows(rows: Rows, cells: Mapping[str, Cell], bank: Sequence[Cell]) -> None:
    """Adds a row for each domain and the claims over all cells."""
    names = dict.fromkeys(key.split("/")[0] for key in cells)
    for name in names:
        own = [cell for key, cell in cells.items() if key.startswith(f"{name}/")]
        rows.note(
            f"{name}: test MAP ({len(own)} seeds)", mean(c["map"][1] for c in own), "", mean(c["map"][0] for c in own)
        )
    gains = [cell["map"][1] - cell["map"][0] for cell in cells.values()]
    before, unseen = [cell["map"][0] for cell in cells.values()], [cell["unseen"] for cell in cells.values()]
    harm = [cell["harm"] for cell in cells.values()]
    rows.at_least("untrained test MAP, least", min(before), "", 0.2)
    rows.at_most("untrained test MAP, most", max(before), "", 0.5)
    rows.at_least(f"gain in test MAP, median of {len(gains)}", median(gains), "", 0.12)
    rows.at_least("gain in test MAP, least", min(gains), "", 0.0)
    rows.at_least("gain on unseen gold facts, median", median(after - first for first, after in unseen), "", 0.05)
    rows.note("gain on unseen gold facts, least", min(after - first for first, after in unseen), "")
    rows.at_most("harm to the sample, median", median(harm), "MAP", 0.01)
    rows.note("harm to the sample, most", max(harm), "MAP")
    told = sum(cell["told"] == "BETTER" for cell in cells.values())
    rows.at_least(f"of {len(cells)} jobs called better", told, "jobs", 0.9 * len(cells))
    rows.note("seconds of a cell, median", median(cell["seconds"] for cell in cells.values()), "s")
    if bank:
        gains = [cell["map"][1] - cell["map"][0] for cell in bank]
        rows.note(
            f"EntailmentBank, dev MAP, mean of {len(bank)} draws",
            mean(c["map"][1] for c in bank),
            "",
            bank[0]["map"][0],
        )
        rows.note("EntailmentBank: gain, median", median(gains), "")
        rows.note("EntailmentBank: gain, least", min(gains), "")
        rows.note("EntailmentBank: called better", sum(cell["told"] == "BETTER" for cell in bank), f"of {len(bank)}")


def main() -> None:
    """Measures the cells that are missing while there is time, and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(GENERATORS), default=list(GENERATORS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=20, help="of EntailmentBank's hypotheses")
    parser.add_argument("--data", type=Path, default=DATA, help="EntailmentBank; left out where there is none")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no cell after so many")
    parser.add_argument("--again", action="store_true", help="forget what was measured")
    given = parser.parse_args()
    ends, path = time.monotonic() + 60 * given.minutes, HOME / "cells.json"
    cells: dict[str, Cell] = json.loads(path.read_bytes()) if path.is_file() and not given.again else {}
    with (
        served(oracle := Knows()) as address,
        kept_fleet(HOME / "fleet", Path(generators.__file__), oracles={"own": address}) as client,
    ):
        measured = Measured(client, oracle)
        wanted: dict[str, Callable[[], Cell]] = {
            f"{name}/{seed}": lambda name=name, seed=seed: domain_cell(measured, name, seed)  # type: ignore[misc]
            for seed in range(given.seeds)
            for name in given.only
        }
        if given.data.is_dir():
            bank = Dataset.load(given.data)
            wanted |= {f"bank/{n}": lambda n=n: bank_cell(measured, bank, n) for n in range(given.draws)}  # type: ignore[misc]
        for key, measure in wanted.items():
            if key not in cells and time.monotonic() < ends:
                cells[key] = measure()
                atomic_write(path, json.dumps(cells, indent=1).encode())
                print(f"  {key}: {cells[key]}", flush=True)
    found = {key: cells[key] for key in wanted if key in cells}
    rows = Rows("own-domain")
    add_rows(
        rows,
        {k: c for k, c in found.items() if not k.startswith("bank/")},
        [c for k, c in found.items() if k.startswith("bank/")],
    )
    if len(found) < len(wanted):
        print(f"{len(found)} of {len(wanted)} cells are measured; the same command goes on")
    rows.finish()


if __name__ == "__main__":
    main()
