"""Wall time to the dev MAP at which sentence-transformers' TripletLoss ends: `make bench NAME=trainer-speed`.

Both trainers get the same 10,000 gold triplets of train, start from the same MiniLM and run on the same machine, one
after the other, in bfloat16 where it has instructions for that. Times are whole processes: imports, loading and, with
ours, validation included; sentence-transformers is not charged for its evaluation. Theirs ends with its epoch, and may
have been as good earlier; the settings of ours were chosen on this dev. `--triplets 1000` makes it shorter.
Needs EntailmentBank in `data/entailmentbank`, and the packages index for their trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aeenc.trees import Dataset
from benchmarks.harness.checkpoints import base_checkpoint
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows
from benchmarks.trainer.fleet import STORE, build_corpus
from benchmarks.trainer.race import (
    HOME,
    Speed,
    Triplet,
    dev_queries,
    gold_triplets,
    has_bfloat16,
    ours,
    pairs_of,
    with_packages,
)
from services.store.artifacts import ArtifactStore
from services.trainer.evaluation.protocol import evaluate
from services.trainer.jobs.job import JobConfig, defaults_of
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model

SEED = 7
BATCH = 32
BAR = 10.0
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
    report_to=[], disable_tqdm=True, use_cpu=True, bf16=request["bf16"],
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


def theirs(dataset: Dataset, model: Path, triplets: Sequence[Triplet], **recipe: Any) -> Speed:
    """sentence-transformers' trainer to its end; premises are encoded anew, since it moves them, too."""
    output = HOME / "theirs"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    candidates = [candidate.text for candidate in dataset.candidates()]
    queries = dev_queries(dataset)
    request = {
        "model": str(model),
        "triplets": triplets,
        "queries": [query.text for query in queries],
        "premises": candidates,
        "output": str(output),
        "bf16": has_bfloat16(),
        **recipe,
    }
    (output / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-c", _THEIRS, str(output / "request.json")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=with_packages())
    vectors, premises = (np.load(output / f"{name}.npy") for name in ("queries", "premises"))
    report = evaluate(queries, vectors, premises, {text: n for n, text in enumerate(candidates)})
    return Speed(json.loads(done.stdout.splitlines()[-1])["seconds"], report.strict.map)


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
    we = ours(store, base, generation, dataset, pairs_of(triplets), they.map, threads=threads, config=config)
    rows.note("ours, at the first epoch that is as good", we.map, "MAP", f"{we.seconds:.1f} s")
    ratio = they.seconds / we.seconds if we.map >= they.map else 0.0  # else it was never reached
    rows.at_least("their time to their dev MAP / ours", ratio, "x", BAR, f"{they.seconds:.0f} s")
    rows.finish()


if __name__ == "__main__":
    main()
