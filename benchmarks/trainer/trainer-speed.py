"""Wall time to the dev MAP at which sentence-transformers' TripletLoss ends: `make bench NAME=trainer-speed`.

Both trainers get the same 10,000 gold triplets of train, start from the same MiniLM and run on the same machine, one
after the other. Times are whole processes: imports, loading and, with ours, validation included; sentence-transformers
is not charged for its evaluation. `--triplets 1000` makes it shorter. Needs EntailmentBank in
`data/entailmentbank`, and the packages index for their trainer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aeenc.trees import Dataset
from benchmarks.harness.checkpoints import base_checkpoint
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.trainer.fleet import STORE, build_corpus
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.data.training_set import JudgedPair
from services.trainer.evaluation.protocol import EvaluationQuery, evaluate
from services.trainer.jobs.files import ComputeOptions, JobFiles, TrainingPlan
from services.trainer.jobs.job import JobConfig, defaults_of
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model

SEED = 7
BATCH = 32
BAR = 10.0
HOME = ROOT / ".aeenc" / "bench" / "trainer" / "speed"
PACKAGES = {  # import name: what to install where it is missing; their extra `train` without torch
    "sentence_transformers": "sentence-transformers==6.2.0",
    "accelerate": "accelerate==1.15.0",
    "datasets": "datasets==5.2.0",
    "dill": "dill==0.4.1",
    "multiprocess": "multiprocess==0.70.19",
    "pandas": "pandas==3.1.1",
    "pyarrow": "pyarrow==26.0.1",
    "requests": "requests==2.34.2",
    "xxhash": "xxhash==4.1.0",
}
POLL_S = 0.05

Triplet = tuple[str, str, str]

# Their trainer as its documentation shows it, with the batch, margin and regime of the row.
_THEIRS = """
import json, sys, time
started = time.perf_counter()
import numpy as np, torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
request = json.loads(open(sys.argv[1], encoding="utf-8").read())
torch.set_num_threads(request["threads"])
model = SentenceTransformer(request["model"], device="cpu")
columns = list(zip(*request["triplets"]))
loss = losses.TripletLoss(model, losses.TripletDistanceMetric.COSINE, request["margin"])
arguments = SentenceTransformerTrainingArguments(
    output_dir=request["output"], num_train_epochs=request["epochs"], per_device_train_batch_size=request["batch_size"],
    learning_rate=request["learning_rate"], warmup_steps=0.1, seed=request["seed"], save_strategy="no",
    report_to=[], disable_tqdm=True, use_cpu=True,
)
data = Dataset.from_dict({"anchor": columns[0], "positive": columns[1], "negative": columns[2]})
SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()
seconds = time.perf_counter() - started
def vectors(texts):
    return model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
np.save(request["output"] + "/queries.npy", vectors(request["queries"]))
np.save(request["output"] + "/premises.npy", vectors(request["premises"]))
print(json.dumps({"seconds": seconds}))
"""


@dataclass(frozen=True)
class Speed:
    """Seconds to a dev MAP, and the MAP."""

    seconds: float
    map: float


def gold_triplets(dataset: Dataset, count: int, seed: int) -> list[Triplet]:
    """A random part of the distinct gold triplets of train."""
    triplets = sorted(set(dataset.distractor_triplets("train")))
    return random.Random(seed).sample(triplets, min(count, len(triplets)))


def theirs(dataset: Dataset, model: Path, triplets: Sequence[Triplet], **recipe: Any) -> Speed:
    """sentence-transformers' trainer to its end; premises are encoded anew, since it moves them, too."""
    output = HOME / "theirs"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    candidates = [candidate.text for candidate in dataset.candidates()]
    queries = _dev(dataset)
    request = {
        "model": str(model),
        "triplets": triplets,
        "queries": [query.text for query in queries],
        "premises": candidates,
        "output": str(output),
        **recipe,
    }
    (output / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-c", _THEIRS, str(output / "request.json")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=_with_packages())
    vectors, premises = (np.load(output / f"{name}.npy") for name in ("queries", "premises"))
    report = evaluate(queries, vectors, premises, {text: n for n, text in enumerate(candidates)})
    return Speed(json.loads(done.stdout.splitlines()[-1])["seconds"], report.strict.map)


def ours(
    store: ArtifactStore,
    base: Artifact,
    generation: str,
    dataset: Dataset,
    triplets: Sequence[Triplet],
    goal: float,
    *,
    threads: int,
    config: JobConfig,
) -> Speed:
    """A job's process, up to the first epoch whose dev MAP is the goal; or to its end, where none is."""
    files = JobFiles(HOME / "ours")
    shutil.rmtree(files.directory, ignore_errors=True)
    files.directory.mkdir(parents=True)
    config = replace(config, data_sets=("triplets",), base_version=base.id, split="train")
    means = ComputeOptions(threads=threads, int8=False, precision="auto")
    files.write_plan(TrainingPlan("speed", config, generation, str(store.root), means))
    pairs = [
        JudgedPair(query, "", premise, sign, "train")
        for query, positive, negative in triplets
        for premise, sign in ((positive, "POSITIVE"), (negative, "NEGATIVE"))
    ]
    files.write_inputs(dict.fromkeys(pairs), _dev(dataset))
    started = time.perf_counter()
    command = [sys.executable, "-m", "services.trainer.learning", "job", str(files.directory)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    reached = Speed(float("inf"), 0.0)
    while process.poll() is None and reached.map < goal:
        time.sleep(POLL_S)
        progress = files.progress() or {}
        found = float(progress.get("best_validation_map", 0.0))
        if found > reached.map:
            reached = Speed(time.perf_counter() - started, found)
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    return reached


def _dev(dataset: Dataset) -> list[EvaluationQuery]:
    return [EvaluationQuery(query.text, tuple(query.gold)) for query in dataset.queries("dev")]


def _with_packages() -> dict[str, str]:
    """The environment in which their trainer runs; what it needs beyond ours lies in a folder of its own."""
    folder = HOME.parent / "packages"
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    missing = [
        wanted for name, wanted in PACKAGES.items() if name not in there and importlib.util.find_spec(name) is None
    ]
    if missing:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *missing]
        subprocess.run(command, check=True)
    return {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}


def main() -> None:
    """Runs both and prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triplets", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=1, help="of sentence-transformers")
    parser.add_argument("--learning-rate", type=float, default=2e-5, help="of sentence-transformers")
    parser.add_argument("--our-loss", default="FULL_CORPUS_SOFTMAX")
    parser.add_argument("--our-learning-rate", type=float, default=1e-4)
    parser.add_argument("--our-temperature", type=float, default=0.07)
    parser.add_argument("--our-steps", type=int, default=24, help="between two validations")
    parser.add_argument(
        "--our-validations", type=int, default=2, help="at most; the learning rate falls until the last"
    )
    arguments = parser.parse_args()
    rows, threads = Rows("trainer-speed"), os.cpu_count() or 1
    dataset, store = entailmentbank(), ArtifactStore(STORE)
    base = base_checkpoint(store)
    corpus, generation = build_corpus(store, base, dataset)
    rows.note("candidates", len(dataset.candidates()), "")
    triplets = gold_triplets(dataset, arguments.triplets, SEED)
    they = theirs(
        dataset,
        find_base_model(DEFAULT_NAME),
        triplets,
        threads=threads,
        margin=0.1,
        epochs=arguments.epochs,
        batch_size=BATCH,
        learning_rate=arguments.learning_rate,
        seed=SEED,
    )
    rows.note(
        f"TripletLoss of sentence-transformers, {len(triplets)} triplets", they.map, "MAP", f"{they.seconds:.0f} s"
    )
    config = JobConfig(
        corpus=corpus,
        run_ids=(),
        loss=arguments.our_loss,
        epochs=arguments.our_validations,
        batch_size=BATCH,
        learning_rate=arguments.our_learning_rate,
        temperature=arguments.our_temperature,
        regularization=defaults_of(arguments.our_loss, "QUERIES").regularization,
        seed=SEED,
        items_per_epoch=arguments.our_steps * BATCH,
    )
    we = ours(store, base, generation, dataset, triplets, they.map, threads=threads, config=config)
    rows.note("ours, at the first epoch that is as good", we.map, "MAP", f"{we.seconds:.1f} s")
    ratio = they.seconds / we.seconds if we.map >= they.map else 0.0  # else it was never reached
    rows.at_least("their time to their dev MAP / ours", ratio, "x", BAR, f"{they.seconds:.0f} s")
    rows.finish()


if __name__ == "__main__":
    main()
