"""Wall time to the dev MAP at which sentence-transformers' TripletLoss ends: `make bench NAME=trainer-speed`.

The same 10,000 gold triplets of train, the same MiniLM, the same machine, one after the other. `--triplets 1000` makes
it shorter. Needs EntailmentBank in `data/entailmentbank`, and the packages index for their trainer.
"""

from __future__ import annotations

import argparse
import os

from benchmarks.harness.checkpoints import base_checkpoint
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.rows import Rows
from benchmarks.trainer.trainer_fleet import STORE, build_corpus
from benchmarks.trainer.trainer_speed import gold_triplets, ours, theirs
from services.store.artifacts import ArtifactStore
from services.trainer.jobs.job import JobConfig, defaults_of
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model

SEED = 7
BATCH = 32
BAR = 10.0


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
