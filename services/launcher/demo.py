"""The whole loop on one machine, told step by step; its figures go to `report.json`.

    corpus -> evaluate on dev -> sample with a gold oracle -> train -> publish under load -> evaluate on dev

It uses the services as any caller does, through the SDK. It reads only the index's files from disk, to show that
publishing does not change them.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import aeenc
from aeenc import errors, values
from aeenc.cli.corpus import build_corpus
from aeenc.cli.learning.jobs import follow_job, job_dict
from aeenc.cli.learning.reports import report_dict
from aeenc.cli.learning.runs import check_end, follow_run, hypotheses_of, run_dict
from aeenc.cli.output import Output, metrics_table, table
from aeenc.evaluation import Gold, gold_of
from aeenc.trees import Dataset, Tree, draw
from services.launcher.fleet import Fleet, Options
from services.launcher.processes import comes_true
from services.store.files import atomic_write, sha256_of

CORPUS = "demo"
CANDIDATES_A_NODE = 50
LOAD_S = 2.0  # callers go on for so long before and after the swap
TOP = 5
SWAP_S = 60.0
CALLERS = 4


@dataclass
class Narrator:
    """The texts and times of the demo's steps."""

    out: Output
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        """Announces a step and times it."""
        self.out.note(f"\n● {text}")
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)
        self.out.note(f"  {self.seconds[name]:.1f} s")


class SwapWatch:
    """Calls Retrieve from its own thread inside `with`: counts failures and notes when each version first answered.

    Its client does not retry, so that no failure is hidden.
    """

    def __init__(self, targets: dict[str, Any], corpus: str, texts: Sequence[str]) -> None:
        self._targets, self._corpus, self._texts = targets, corpus, texts
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._call()), daemon=True)
        self.requests = 0
        self.failures: list[str] = []
        self.first_answer_at: dict[str, float] = {}

    def __enter__(self) -> SwapWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def await_version(self, version: str, timeout_s: float) -> float:
        """Waits until a version has answered; returns when, on the monotonic clock. Raises DeadlineExceeded."""
        if not comes_true(lambda: version in self.first_answer_at, timeout_s):
            raise errors.DeadlineExceeded(f"{version} has not answered {timeout_s:.0f} s after its publication")
        return self.first_answer_at[version]

    async def _call(self) -> None:
        async with aeenc.connect_async(**self._targets, ca="", retry=False) as client:
            await asyncio.gather(*(self._caller(client, offset) for offset in range(CALLERS)))

    async def _caller(self, client: aeenc.AsyncClient, offset: int) -> None:
        for text in itertools.islice(itertools.cycle(self._texts), offset, None):
            if self._end.is_set():
                return
            self.requests += 1
            try:
                answer = await client.index.retrieve(self._corpus, [text], k=10, truncate=True)
            except errors.AeencError as error:
                self.failures.append(f"{error.code}: {error.message}")
            else:
                self.first_answer_at.setdefault(answer.model_version, time.monotonic())


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the block as Ctrl-C does, so that it cleans up; what nohup ignores stays ignored."""

    def end(number: int, _: object) -> None:
        for one in deadly:  # a terminal that closes sends several, and the clean-up must not end
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    deadly = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _stopped_at_the_end(fleet: Fleet, narrator: Narrator) -> Iterator[None]:
    try:
        yield
    finally:
        try:
            with narrator.step("stop", "stopping everything"):
                fleet.down()
        finally:
            fleet.down()  # also when the terminal is gone to which a step is told


def run_demo(directory: Path, home: Path, out: Output, epochs: int) -> dict[str, Any]:
    """Runs the loop over a data set, from an empty home, and returns the report. Stops everything at the end."""
    started = time.monotonic()
    dataset = Dataset.load(directory)
    validation = gold_of(dataset, "dev")
    narrator = Narrator(out)
    fleet = Fleet(home / "fleet")
    fleet.down()
    shutil.rmtree(fleet.home)
    with _ended_by_signals(), _stopped_at_the_end(fleet, narrator):
        with narrator.step("start", "starting Redis, trainer, encoder, index, sampler and a gold oracle"):
            options = Options(base_port=0, gold_trees=str(directory.resolve()), gold_split="train")
            targets = fleet.up(options, lambda text: out.note(f"  {text}"))
        addresses = {name: targets[name] for name in ("encoder", "index", "sampler", "trainer")}
        encoder, index, sampler, trainer = addresses.values()  # no TLS here, whatever AEENC_CA says
        with aeenc.connect(encoder=encoder, index=index, sampler=sampler, trainer=trainer, ca="") as client:
            report = _loop(client, addresses, fleet, dataset, validation, narrator, epochs)
    seconds = {**narrator.seconds, "total": round(time.monotonic() - started, 1)}
    report = {"data": str(directory), **report, "seconds": seconds}
    path = home / "report.json"
    atomic_write(path, json.dumps(report, indent=1).encode())
    out.result(report, metrics_table(report["before"], report["after"]), *_summary(report), f"written to {path}")
    return report


def _loop(
    client: aeenc.Client,
    addresses: dict[str, str],
    fleet: Fleet,
    dataset: Dataset,
    validation: list[Gold],
    narrator: Narrator,
    epochs: int,
) -> dict[str, Any]:
    out = narrator.out
    with narrator.step("corpus", "building the corpus"), out.progress("building", "facts") as tell:
        started = time.monotonic()
        built = build_corpus(client, CORPUS, dataset, tell)
        rate = built.premises / (time.monotonic() - started)
    out.note(f"  {built.premises:,} facts, {rate:,.0f}/s")
    hypotheses = [text for _, text in hypotheses_of(dataset, "dev")]
    with narrator.step("evaluate_before", "evaluating the untrained encoder on dev"):
        before = report_dict(client.trainer.evaluate(CORPUS, validation))
        found_before = _top(client, hypotheses)
    with narrator.step("sample", "sampling: ACS on the train hypotheses, judged by the remote gold oracle"):
        run = _sample(client, dataset, out)
    with narrator.step("train", "training the query encoder on what the oracle answered"):
        job = _train(client, run, validation, epochs, out)
    index_before = _index_hashes(fleet, built.id)
    with narrator.step("publish", "publishing while a client keeps calling Retrieve"):
        swap = _publish(client, addresses, job.version, hypotheses)
    index_after = _index_hashes(fleet, built.id)
    with narrator.step("evaluate_after", "evaluating the trained encoder on dev"):
        after = report_dict(client.trainer.evaluate(CORPUS, validation))
        found_after = _top(client, hypotheses)
    _show_example(client, dataset, validation, found_before, found_after, out)
    return {
        "candidates": before["candidates"],
        "queries": before["queries"],
        "pairs": {"positive": run.progress.positives, "negative": run.progress.negatives},
        "epochs": job.progress.epochs,
        "before": {name: before[name] for name in ("strict", "paper")},
        "after": {name: after[name] for name in ("strict", "paper")},
        "versions": {"before": before["model_version"], "after": after["model_version"]},
        "swap": swap,
        "index_sha256": {"before": index_before, "after": index_after},
    }


def _sample(client: aeenc.Client, dataset: Dataset, out: Output) -> values.Run:
    run = client.sampler.start_run(
        hypotheses_of(dataset, "train"), corpus=CORPUS, oracle="gold", k=CANDIDATES_A_NODE, split="train"
    )
    run = follow_run(client, run, out)
    check_end("run", run_dict(run))
    progress = run.progress
    out.note(
        f"  {progress.nodes_judged:,} nodes, {progress.judgements:,} judgements: "
        f"{progress.positives:,} positive and {progress.negatives:,} refused pairs"
    )
    return run


def _train(client: aeenc.Client, run: values.Run, validation: list[Gold], epochs: int, out: Output) -> values.Job:
    job = client.trainer.start_job(validation=validation, corpus=CORPUS, run_ids=[run.id], epochs=epochs, split="train")
    job = follow_job(client, job, out)
    check_end("job", job_dict(job))
    out.note(
        f"  {job.version}: validation MAP {job.progress.best_validation_map:.3f} after {job.progress.epochs} epochs"
    )
    return job


def _publish(client: aeenc.Client, addresses: dict[str, str], version: str, texts: list[str]) -> dict[str, Any]:
    with SwapWatch(addresses, CORPUS, texts) as watch:
        time.sleep(LOAD_S)
        published_at = time.monotonic()
        publication = client.registry.publish(version, wait_s=SWAP_S)
        if not publication.complete:
            reasons = "; ".join(rollout.reason for rollout in publication.rollouts if not rollout.ok)
            raise errors.DeadlineExceeded(f"not every encoder serves {version}: {reasons or 'none answered'}")
        served_at = watch.await_version(version, SWAP_S)
        time.sleep(LOAD_S)
    return {
        "requests": watch.requests,
        "failed": len(watch.failures),
        "failures": watch.failures[:5],
        "publish_to_serving_s": round(served_at - published_at, 2),
    }


def _top(client: aeenc.Client, texts: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for start in range(0, len(texts), 256):
        part = texts[start : start + 256]
        hits = client.index.retrieve(CORPUS, part, k=TOP, truncate=True)
        found.update({text: [hit.text for hit in row] for text, row in zip(part, hits.results, strict=True)})
    return found


def _index_hashes(fleet: Fleet, generation: str) -> str:
    """Returns one hash over the hashes of all files of a generation."""
    digest = hashlib.sha256()
    for path in sorted((fleet.artifacts / "generations" / CORPUS / generation).iterdir()):
        digest.update(f"{path.name} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


def _show_example(
    client: aeenc.Client,
    dataset: Dataset,
    validation: list[Gold],
    before: dict[str, list[str]],
    after: dict[str, list[str]],
    out: Output,
) -> None:
    """Shows the dev hypothesis that gained most: its top five before and after, and its gold tree with the hits."""
    if out.as_json:
        return
    gold = {text: set(premises) for text, premises in validation}
    trees = {tree.hypothesis: tree for tree in dataset.trees("dev")}

    def gain(text: str) -> int:
        return len(gold[text] & set(after[text])) - len(gold[text] & set(before[text]))

    chosen = max(trees, key=gain)
    rows = [
        (place + 1, *(_mark(found[chosen], place, gold[chosen]) for found in (before, after))) for place in range(TOP)
    ]
    out.result({}, f"\n{chosen}", table(["", "before", "after (✓ explains it, says the gold tree)"], rows))
    out.result({}, "\nIts gold tree; ✓: among the top five of its parent now", _draw_gold(client, trees[chosen]), "")


def _mark(texts: list[str], place: int, gold: set[str]) -> str:
    text = texts[place] if place < len(texts) else ""
    return f"✓ {text}" if text in gold else text


def _draw_gold(client: aeenc.Client, tree: Tree) -> str:
    inner = {label: tree.texts[label] for label, children in tree.children.items() if children}
    found = _top(client, list(dict.fromkeys(inner.values())))
    marked = {
        tree.texts[child]
        for label, text in inner.items()
        for child in tree.children[label]
        if tree.texts[child] in found[text]
    }
    width = min(100, shutil.get_terminal_size().columns)
    return draw(tree, width=width, marked=marked)


def _summary(report: dict[str, Any]) -> list[str]:
    swap, hashes = report["swap"], report["index_sha256"]
    same = "unchanged" if hashes["before"] == hashes["after"] else "CHANGED"
    return [
        "strict drops a candidate whose text is the query's, paper keeps it (docs/evaluation.md)",
        f"swap under load: {swap['requests']:,} requests, {swap['failed']} failed",
        f"the new version first answered {swap['publish_to_serving_s']:.2f} s after its publication",
        f"the index's files are {same}",
        f"{report['seconds']['total']:.0f} s in all",
    ]
