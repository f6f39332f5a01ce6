"""The part `encoder`: what an encoder chooses by itself, beside each choice made by hand and bare onnxruntime.

Choices take turns on the same facts of EntailmentBank, through gRPC, with as many workers as cores. Each is then shown
with what it costs in quality: strict MAP of dev's queries over float32 premises, and cosines alone and in batches.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aeenc import EncoderClient
from benchmarks.encoder.fleet import running_encoder
from benchmarks.harness.baselines import BareOnnxruntime
from benchmarks.harness.checkpoints import STORE, base_checkpoint, embedded, int8_checkpoint
from benchmarks.harness.entailmentbank import entailmentbank
from benchmarks.harness.load import closed_loop
from benchmarks.harness.rows import Rows
from services.encoder.runtime.openvino_session import bfloat16_refusal
from services.store.artifacts import ArtifactStore
from services.trainer.evaluation.protocol import EvaluationQuery
from services.trainer.learning.checkpoint.quantization import int8_gate

ROUNDS, CONNECTIONS, TOGETHER = 12, 4, 256
FAST = {"avx512_vnni", "avx_vnni", "amx_int8", "avx512_bf16", "amx_bf16"}
CPUINFO = Path("/proc/cpuinfo")


async def precisions(rows: Rows, count: int) -> None:
    """Adds the rows, measured on so many facts."""
    store = ArtifactStore(STORE)
    base = base_checkpoint(store)
    gated = int8_checkpoint(store, base)
    dataset = entailmentbank()
    candidates = [candidate.text for candidate in dataset.candidates()]
    texts = random.Random(0).sample(candidates, count)
    bare = BareOnnxruntime(gated.path)
    by_hand = ["float32", "int8", *([] if bfloat16_refusal() else ["bfloat16"])]
    rates: dict[str, list[float]] = {name: [] for name in ("bare", "auto", *by_hand)}
    async with AsyncExitStack() as stack:
        clients: dict[str, list[EncoderClient]] = {}
        for name in ("auto", *by_hand):
            fleet = await stack.enter_async_context(running_encoder(store, base, gated, precision=name))
            clients[name] = [fleet.client(retry=True) for _ in range(CONNECTIONS)]
            await closed_loop(clients[name], texts[:512], callers=8, size=32, role="query")
        order = list(clients)
        for _ in range(ROUNDS):
            rates["bare"].append(max(bare.rates(texts).values()))
            for name in order:
                rates[name].append(await closed_loop(clients[name], texts, callers=8, size=32, role="query"))
            order.reverse()  # none always runs after the same other
        best = max(by_hand, key=lambda name: statistics.median(rates[name]))
        raced = await _race(clients["auto"], clients[best], texts)
        rows.at_least("encoder: auto over the best choice by hand", raced, "x", 0.97, best)
        [chosen] = [one for one in (await clients["auto"][0].info()).versions if not one.premise_encoder]
        _speeds(rows, rates)
        rows.note("encoder: auto chose", chosen.precisions[0].name.lower(), "", chosen.precision_reason)
        queries = [EvaluationQuery(query.text, tuple(query.gold)) for query in dataset.queries("dev")]
        premises = embedded(base, candidates)
        ordinals = {text: ordinal for ordinal, text in enumerate(candidates)}
        exact = await _encoded(clients["float32"][0], [query.text for query in queries], 1)
        for name in by_hand:
            together = await _encoded(clients[name][0], [query.text for query in queries], TOGETHER)
            alone = exact if name == "float32" else await _encoded(clients[name][0], [q.text for q in queries], 1)
            gate = int8_gate(queries, exact, alone, premises, ordinals)
            told = (
                f"MAP lost {gate.map_loss:.4f}, cosine to float32 {gate.cosine_mean:.6f}, least {gate.cosine_min:.6f}"
            )
            least = float(np.einsum("nd,nd->n", alone, together).min())
            rows.at_least(f"encoder: {name}, least cosine alone to in batches", least, "cosine", 0.9999, told)
        await asyncio.gather(*(client.channel.close() for callers in clients.values() for client in callers))
    if refusal := bfloat16_refusal():
        rows.note("encoder: bfloat16 was not measured", "", "", refusal)


async def _race(first: list[EncoderClient], second: list[EncoderClient], texts: Sequence[str]) -> float:
    """How many times as fast the first is: the median of rounds first, second, second, first.

    Both may be the same code. So no place in a round may be an advantage, and nothing else runs between them.
    """
    ratios = []
    for _ in range(ROUNDS):
        taken = [
            await closed_loop(one, texts, callers=8, size=32, role="query") for one in (first, second, second, first)
        ]
        ratios.append((taken[0] + taken[3]) / (taken[1] + taken[2]))
    return statistics.median(ratios)


def _speeds(rows: Rows, rates: dict[str, list[float]]) -> None:
    medians = {name: round(statistics.median(found), 1) for name, found in rates.items()}

    def over(name: str) -> float:
        return statistics.median(a / b for a, b in zip(rates["auto"], rates[name], strict=True))

    flags = next((line for line in CPUINFO.read_text().splitlines() if line.startswith("flags")), "").split()
    for name, title in (("float32", "fp32 onnxruntime, served"), ("bare", "fp32 onnxruntime, bare, best of three")):
        if FAST & set(flags):
            rows.at_least(f"encoder: auto over {title}", over(name), "x", 1.8, medians)
        else:
            rows.note(f"encoder: auto over {title}, a CPU without VNNI, bf16 or AMX", over(name), "x", medians)


async def _encoded(client: EncoderClient, texts: Sequence[str], size: int) -> NDArray[np.float32]:
    """Vectors (n, dim) of queries, so many in a call."""
    parts = [texts[start : start + size] for start in range(0, len(texts), size)]
    return np.concatenate([(await client.encode(part)).vectors for part in parts])
