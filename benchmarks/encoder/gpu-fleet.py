"""A fleet whose encoder and trainer compute on one GPU: texts a second over gRPC, training, a swap under load.

    make bench NAME=gpu-fleet ARGS='[--model DIR] [--epochs 8]'

Needs the torch runtime with CUDA, and EntailmentBank. The fleet's state is kept for each device: jobs that a former run
has ended are found again, with their times. `--device cpu` tries the script.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from aeenc import values
from aeenc.calls.encoding import Role
from benchmarks.harness.entailmentbank import check_there
from benchmarks.harness.rows import Rows
from benchmarks.tables.research import HOME, Research, research
from benchmarks.tables.table_rows import OURS
from services.trainer.models.base_model import DEFAULT_NAME

CALLERS, SIZE, TEXTS = 16, 512, 65_536
PROCESSES, SHORT = 2, 2  # of a job that several train, and its epochs
FARTHEST = 0.01  # in MAP: a batch's halves are padded to other lengths
SWAP_S = 2.0  # of load before and after a swap


def measure(rows: Rows, model: str, card: str, epochs: int, home: Path) -> None:
    """Measures a fleet of one process a job, then one of two."""
    begun = time.monotonic()
    with research(model, home=home) as running:
        premises = [one.text for one in running.dataset.candidates()]
        told = f"{running.client.encoder.info().runtime}; {running.client.trainer.info().device}"
        rows.note(f"{card}: fleet up, {len(premises):,} premises indexed", time.monotonic() - begun, "s", told)
        roles: Mapping[str, Role] = {"queries, half precision": "query", "premises, float32": "premise"}
        texts = (premises * (1 + TEXTS // len(premises)))[:TEXTS]
        for name, role in roles.items():
            _encode_all(running, texts, role)
            begun = time.monotonic()
            _encode_all(running, texts, role)
            rows.note(f"{card}: {name}, over gRPC", len(texts) / (time.monotonic() - begun), "texts/s")
        job = running.train("gpu-ours", {**OURS, "epochs": epochs, "seed": 0})
        rows.note(f"{card}: `ours`, {epochs} epochs, dev MAP", job.progress.best_validation_map, "", seconds_of(job))
        _swap(rows, card, running, str(job.version), premises)
        begun = time.monotonic()
        report = running.evaluate("dev", strict_only=True)
        rows.note(f"{card}: dev evaluated, strict MAP", report["strict"]["MAP"], "", time.monotonic() - begun)
        alone = running.train("gpu-alone", {**OURS, "epochs": SHORT})
    with research(model, home=home, processes=PROCESSES) as running:
        several = running.train("gpu-several", {**OURS, "epochs": SHORT})
    maps = [one.progress.best_validation_map for one in (alone, several)]
    rows.at_most(f"{card}: {PROCESSES} processes on it, |dev MAP - of one|", abs(maps[1] - maps[0]), "", FARTHEST, maps)
    for count, one in ((1, alone), (PROCESSES, several)):
        rows.note(f"{card}: {SHORT} epochs by {count}, the whole job", seconds_of(one), "s")


def seconds_of(job: values.Job) -> float:
    """From the call that started a job to its end: loading, epochs with their validation, export."""
    assert job.ended_at is not None
    return (job.ended_at - job.created_at).total_seconds()


def _encode_all(running: Research, texts: Sequence[str], role: Role) -> None:
    parts = [texts[start : start + SIZE] for start in range(0, len(texts), SIZE)]
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(lambda part: running.client.encoder.encode(part, role=role), parts))


def _swap(rows: Rows, card: str, running: Research, version: str, texts: Sequence[str]) -> None:
    """Points `stable` at a version while callers encode, without retries."""
    ended, errors, versions = threading.Event(), [], []
    encoder = running.client.with_options(retry=False).encoder

    def call(number: int) -> int:
        calls = 0
        while not ended.is_set():
            try:
                found = encoder.encode(texts[number : number + 8], role="query")
                versions.append(found.model_version)
            except Exception as error:  # noqa: BLE001 -- whatever it is, a call has failed
                errors.append(repr(error))
            calls += 1
        return calls

    with ThreadPoolExecutor(CALLERS) as pool:
        callers = [pool.submit(call, number) for number in range(CALLERS)]
        time.sleep(SWAP_S)
        begun = time.monotonic()
        running.serve(version)
        seconds = time.monotonic() - begun
        time.sleep(SWAP_S)
        ended.set()
        calls = sum(one.result() for one in callers)
    rows.note(f"{card}: from `publish` until the version serves", seconds, "s")
    rows.add(f"{card}: failed of {calls} calls around the swap", len(errors), "", "0", not errors, errors[:3])
    rows.add(f"{card}: versions that answered", len(set(versions)), "", "2", len(set(versions)) == 2)


def main() -> None:
    """Measures on the card, or says why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_NAME, help="the base model: a name or a directory")
    parser.add_argument("--epochs", type=int, default=int(OURS["epochs"]))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--home", type=Path, help="where the fleet's state stays; by default a folder of the device")
    asked = parser.parse_args()
    check_there()
    rows = Rows("gpu-fleet")
    if asked.device == "cuda" and not torch.cuda.is_available():
        rows.note("all", "not measured: torch finds no GPU", "")
        rows.finish()
    os.environ["AEENC_ENCODER_RUNTIME"] = "torch"
    os.environ |= dict.fromkeys(("AEENC_ENCODER_DEVICE", "AEENC_TRAINER_DEVICE"), asked.device)
    card = torch.cuda.get_device_name() if asked.device == "cuda" else "cpu"
    home = asked.home or HOME.with_name("gpu-fleet") / card.replace(" ", "-")
    measure(rows, asked.model, card, asked.epochs, home)
    rows.finish()


if __name__ == "__main__":
    main()
