"""Part `rival`: the time of `ours` to its dev MAP, and that of sentence-transformers' trainer to the same.

Both start from the same MiniLM, learn from the gold of train, and run one after the other on the same cores with the
same number of threads. Times of ours are a whole process: imports, loading and each validation included; theirs are
training alone. Each of their losses gets a schedule of its own over the budget, a linear decay after a warm-up: the
steps that fit are counted beforehand, by steps that are not charged. It is evaluated from a third of the budget on, at
every tenth, on premises encoded anew, since they move. What never reaches our MAP counts with all the time that it had.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from aeenc.trees import Dataset
from benchmarks.harness.checkpoints import base_checkpoint
from benchmarks.harness.rows import ROOT, Rows
from benchmarks.trainer.fleet import STORE, build_corpus
from benchmarks.trainer.race import HOME, dev_queries, gold_triplets, has_bfloat16, ours, with_packages
from services.store.artifacts import ArtifactStore
from services.trainer.data.training_set import JudgedPair
from services.trainer.jobs.job import JobConfig, defaults_of
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model

SEED, BATCH, BUDGET = 7, 64, 3.0
SPARE = 1.1  # of the budget, so that it is spent whole where steps take less than they were counted at
TEMPERATURE, RATE = 0.03, 1e-4
MNRL, TRIPLETS = "CachedMultipleNegativesRankingLoss", "TripletLoss"
LOSSES = (MNRL, TRIPLETS)
TRIPLETS_LEARNED = 10_000  # a random part, as in `trainer-speed`
THEIR_RATE = {MNRL: 5e-5, TRIPLETS: 2e-5}
THEIR_BATCH = {MNRL: 128, TRIPLETS: 32}

# Their trainer as its documentation shows it: no text twice in a batch, cached negatives in small parts.
_THEIRS = """
import json, math, sys, time
import numpy as np, torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from transformers import TrainerCallback
from services.trainer.evaluation.protocol import EvaluationQuery, evaluate
request = json.loads(open(sys.argv[1], encoding="utf-8").read())
torch.set_num_threads(request["threads"])
queries = [EvaluationQuery(text, tuple(gold)) for text, gold in request["queries"]]
names = ("anchor", "positive", "negative")
data = Dataset.from_dict(dict(zip(names, map(list, zip(*request["rows"])))))
def measured(model):
    encode = lambda texts: model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
    vectors = encode([query.text for query in queries]), encode(request["premises"])
    return evaluate(queries, *vectors, {text: n for n, text in enumerate(request["premises"])}).strict.map
class Clock(TrainerCallback):
    def __init__(self, looks):
        self.looks, self.spent, self.model = set(looks), 0.0, None
    def on_step_begin(self, *_, **__):
        self.begun = time.perf_counter()
    def on_step_end(self, arguments, state, control, **_):
        self.spent += time.perf_counter() - self.begun
        if state.global_step in self.looks:
            found = {"seconds": self.spent, "map": measured(self.model), "steps": state.global_step}
            print(json.dumps(found), flush=True)
def trained(steps, looks):
    model = SentenceTransformer(request["model"], device="cpu")
    if request["loss"] == "TripletLoss":
        loss = losses.TripletLoss(model, losses.TripletDistanceMetric.COSINE, 0.1)
    else:
        loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=32)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=request["output"], max_steps=steps, per_device_train_batch_size=request["batch_size"],
        learning_rate=request["learning_rate"], warmup_steps=0.1, seed=request["seed"], save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, bf16=request["bf16"], batch_sampler=BatchSamplers.NO_DUPLICATES,
    )
    clock = Clock(looks)
    clock.model = model
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss, callbacks=[clock])
    trainer.train()
    return clock.spent / steps
pace = trained(request["tried_steps"], [])
steps = math.ceil(request["budget_s"] / pace)
trained(steps, [*(math.ceil(steps * share) for share in (1/3, .4, .5, .6, .7, .8, .9)), steps])
"""


def rival(rows: Rows, dataset: Dataset, epochs: int, items: int, threads: int, against: Sequence[str] = LOSSES) -> None:
    """Trains ours for some epochs of so many queries (0: all), then theirs by each loss."""
    store = ArtifactStore(STORE)
    base = base_checkpoint(store)
    corpus, generation = build_corpus(store, base, dataset)
    gold = [(query.text, premise) for query in dataset.queries("train") for premise in query.gold]
    config = JobConfig(
        corpus=corpus,
        run_ids=(),
        loss="FULL_CORPUS_SOFTMAX",
        epochs=epochs,
        batch_size=BATCH,
        learning_rate=RATE,
        temperature=TEMPERATURE,
        regularization=defaults_of("FULL_CORPUS_SOFTMAX", "QUERIES").regularization,
        seed=SEED,
        items_per_epoch=items,
    )
    pairs = [JudgedPair(query, "", premise, "POSITIVE", "train") for query, premise in gold]
    we = ours(store, base, generation, dataset, pairs, float("inf"), threads=threads, config=config)
    told = f"MAP {we.map:.4f}, {epochs} x {items or 'all'} queries, {threads} threads"
    rows.note("ours: to its dev MAP", round(we.seconds, 1), "s", told)
    reached, spent = float("inf"), float("inf")
    for loss in against:
        learned = gold if loss == MNRL else gold_triplets(dataset, TRIPLETS_LEARNED, SEED)
        looks = _theirs(dataset, loss, learned, threads, SPARE * BUDGET * we.seconds)
        best = max(looks, key=lambda one: one["map"])
        told = ", ".join(f"{one['map']:.4f} after {one['seconds']:.0f} s ({one['steps']} steps)" for one in looks)
        rows.note(f"{loss}: best dev MAP within {BUDGET:g} x that time", round(best["map"], 4), "MAP", told)
        reached = min([reached, *(one["seconds"] for one in looks if one["map"] >= we.map)])
        spent = min(spent, looks[-1]["seconds"])
    told = f"{reached:.0f} s" if reached < spent else f"a bound: not reached by {', '.join(against)}"
    ratio = min(reached, spent) / we.seconds
    rows.at_least("their time to our dev MAP by the best loss / ours", ratio, "x", BUDGET, told)


def _theirs(
    dataset: Dataset, loss: str, learned: Sequence[Sequence[str]], threads: int, budget_s: float
) -> list[dict[str, Any]]:
    output = HOME / loss
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    request = {
        "model": str(find_base_model(DEFAULT_NAME)),
        "loss": loss,
        "rows": learned,
        "queries": [[query.text, query.gold] for query in dev_queries(dataset)],
        "premises": [candidate.text for candidate in dataset.candidates()],
        "output": str(output),
        "threads": threads,
        "batch_size": THEIR_BATCH[loss],
        "learning_rate": THEIR_RATE[loss],
        "budget_s": budget_s,
        "tried_steps": 3,
        "seed": SEED,
        "bf16": has_bfloat16(),
    }
    (output / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-c", _THEIRS, str(output / "request.json")]
    environment = {**with_packages(), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
