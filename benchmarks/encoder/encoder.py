"""The encoder against the hardware's limit: throughput, latency, memory, start, invariance. `make bench NAME=encoder`.

sentence-transformers, bare onnxruntime and an empty gRPC call are measured in turn with it, in the same run. Ratios are
medians over rounds. Needs EntailmentBank in `data/entailmentbank` or in AEENC_BENCH_DATA.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness.baselines import BareOnnxruntime, Echo, SentenceTransformers
from benchmarks.harness.checkpoints import STORE, base_checkpoint, int8_checkpoint, variant
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.load import closed_loop, times_ms
from benchmarks.harness.rows import Rows, run
from benchmarks.harness.services import EncoderFleet, running_encoder
from services.store.artifacts import Artifact, ArtifactStore
from services.trainer.models.base_model import DEFAULT_NAME, find_base_model

ROUNDS = 5
TEXTS = 2048  # three seconds a pass, so that its ragged end weighs little
CONNECTIONS = 4
SAME = 0.99999  # cosine of a text alone to itself in a batch


async def throughput(rows: Rows, base: Artifact, gated: Artifact, store: ArtifactStore, texts: Sequence[str]) -> None:
    """Both loads in fp32, and the large one in int8, against sentence-transformers and bare onnxruntime."""
    bare = BareOnnxruntime(base.path)
    rates: dict[str, list[float]] = {name: [] for name in ("st", "bare", "8 x 32", "64 x 1", "int8")}
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(texts))
        file.flush()
        st = SentenceTransformers(find_base_model(DEFAULT_NAME))
        async with running_encoder(store, base) as fp32, running_encoder(store, base, gated, precision="int8") as int8:
            clients = [fleet.client(retry=True) for fleet in (fp32, int8) for _ in range(CONNECTIONS)]
            premises = [partial(client.encode, role="premise") for client in clients[:CONNECTIONS]]
            queries = [client.encode for client in clients[CONNECTIONS:]]
            for _ in range(ROUNDS):
                rates["bare"].append(max(bare.rates(texts).values()))
                rates["8 x 32"].append(await closed_loop(premises, texts, callers=8, size=32))
                rates["64 x 1"].append(await closed_loop(premises, texts, callers=64, size=1))
                rates["int8"].append(await closed_loop(queries, texts, callers=8, size=32))
                rates["st"].append(st.rate(Path(file.name)))
            info = await clients[-1].info()
            await asyncio.gather(*(client.channel.close() for client in clients))
        st.close()

    def ratio(name: str, baseline: str) -> float:
        return statistics.median(a / b for a, b in zip(rates[name], rates[baseline], strict=True))

    medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    rows.at_least("8 callers x 32, fp32, over sentence-transformers", ratio("8 x 32", "st"), "x", 1.7, medians["st"])
    rows.at_least("8 callers x 32, fp32, over bare onnxruntime", ratio("8 x 32", "bare"), "x", 0.85, medians["bare"])
    rows.at_least("64 callers x 1, fp32, over bare onnxruntime", ratio("64 x 1", "bare"), "x", 0.70, medians["bare"])
    serving = any(list(version.precisions) and version.precisions[0] == 3 for version in info.versions)
    rows.add("int8 passed the gate and serves", serving, "", "True", serving, gated.meta["int8"])
    rows.at_least("8 callers x 32, int8, over sentence-transformers", ratio("int8", "st"), "x", 2.3, medians["st"])
    for name in ("8 x 32", "64 x 1", "int8"):
        rows.note(f"{name}, texts a second", medians[name], "1/s", medians["bare"])


async def latency(rows: Rows, fleet: EncoderFleet, base: Artifact, texts: Sequence[str]) -> None:
    """One caller, one text: what the service adds to the model, which empties the processor's caches, and to a call."""
    bare, client = BareOnnxruntime(base.path), fleet.client(retry=True)
    async with Echo() as echo:
        calls: dict[str, Callable[[str], object]] = {
            "encode": lambda text: client.encode([text], role="premise"),
            "model": bare.one,
            "echo": lambda _: echo.call(),
        }
        took = await times_ms(calls, texts[:1200])
    await client.channel.close()
    medians = {name: statistics.median(found) for name, found in took.items()}
    added = medians["encode"] - medians["model"] - medians["echo"]
    baseline = ", ".join(f"{name} {value:.3f}" for name, value in medians.items())
    rows.at_most("one caller, one text: p50 over the model and an echo", added, "ms", 0.7, baseline)


async def footprint(rows: Rows, fleet: EncoderFleet, store: ArtifactStore, base: Artifact) -> None:
    """Start, memory with one version and with more, and that torch is not there."""
    one = fleet.process.resident_mb()
    rows.at_most("start to SERVING", fleet.process.starting_s, "s", 3.0)
    rows.at_most("resident memory, one version", one, "MB", 350.0, round(base.size_bytes / 1e6))
    await fleet.point(variant(store, base, 1), label="run-1")
    await fleet.point(variant(store, base, 2), label="run-2")
    further = (fleet.process.resident_mb() - one) / 2
    rows.at_most("resident memory, each further version", further, "MB", 120.0, round(base.size_bytes / 1e6))
    has_torch = fleet.process.maps("libtorch")
    rows.add("torch in the process", has_torch, "", "False", not has_torch)


async def invariance(rows: Rows, fleet: EncoderFleet, texts: Sequence[str], precision: str) -> None:
    """The same text alone, and in batches of every kind."""
    client = fleet.client(retry=True)
    alone = np.concatenate([(await client.encode([text])).vectors for text in texts])
    rng = random.Random(7)
    worst = 1.0
    for size in (2, 7, 32, 128):
        order = rng.sample(range(len(texts)), len(texts))
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        answers = await asyncio.gather(*(client.encode([texts[n] for n in part]) for part in parts))
        for part, answer in zip(parts, answers, strict=True):
            assert answer.precision == precision
            worst = min(worst, float(np.einsum("nd,nd->n", answer.vectors, alone[part]).min()))
    await client.channel.close()
    name = f"{precision} batch invariance: least cosine alone to in a batch"
    rows.at_least(name, worst, "cosine", SAME)


async def main() -> None:
    """Runs all parts."""
    rows = Rows("encoder")
    store = ArtifactStore(STORE)
    base = base_checkpoint(store)
    gated = int8_checkpoint(store, base)
    texts = [candidate.text for candidate in entailmentbank().candidates()]
    random.Random(0).shuffle(texts)
    async with running_encoder(store, base) as fleet:
        await latency(rows, fleet, base, texts)
        await invariance(rows, fleet, texts[:256], "float32")
    async with running_encoder(store, base) as fleet:
        await footprint(rows, fleet, store, base)
    async with running_encoder(store, base, gated, precision="int8") as fleet:
        await invariance(rows, fleet, texts[:256], "int8")
    await throughput(rows, base, gated, store, texts[:TEXTS])
    rows.finish()


if __name__ == "__main__":
    run(main())
