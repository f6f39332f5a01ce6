"""Measures what GPUs are for, in parts of at most three minutes: encoder, training, exact search, beside others.

    python -m benchmarks.encoder.gpu [--only PART ...] [--again] [--model DIR] [--device cpu --share .001 --side 256]

A part that ran on a card as a whole, with all rounds and the made-up model, is kept in docs/results/gpu/PART.json (or
below AEENC_BENCH_RESULTS), and is not measured again without `--again`. One that fails leaves the others; what is still
owed is listed at the end. DIR is a sentence-transformers directory with mean pooling. Without it, a model of MiniLM's
shape is made up, with weights from a seed, which change no speed.

The script needs torch with CUDA, transformers, tokenizers, uvloop, structlog, prometheus-client and opentelemetry-api,
the SDK (`PYTHONPATH=clients/python` will do), and sentence-transformers as a rival. Parts that lack something say so:
`index` and `onnxruntime` need onnxruntime with CUDA, `index-torch` any onnxruntime, all searches faiss and onnx.
`--device cpu` tries the script, with a `--share` of all texts, rows and layers; the bars of a card do not hold there.

All encoders turn the same texts into vectors in memory, tokenizing included, by turns; medians count.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import nn, optim

from benchmarks.encoder.gpu_encoders import (
    MAX_TOKENS,
    Encode,
    by_turns,
    open_model,
    ours,
    ours_in_onnxruntime,
    plain_torch,
    sentence_transformers,
    tokenizer_of,
)
from benchmarks.encoder.gpu_setting import ROUNDS, SIDE, NotMeasured, Setting, flops_of, make_model, product_flops
from benchmarks.encoder.gpu_stages import bert_large, stages
from benchmarks.harness.rows import KEPT, Rows, run, surroundings
from services.trainer.jobs.files import Precision
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.training_set import Example, TrainingSet
from services.trainer.models.batches import Batches
from services.trainer.models.space import SpaceSpec, pad_id_of
from services.trainer.train.data import FrozenVectors, Texts
from services.trainer.train.encoder import Encoders, load_encoder
from services.trainer.train.loop import MAX_GRADIENT_NORM, WEIGHT_DECAY, Learner
from services.trainer.train.losses import full_corpus_softmax
from services.trainer.train.objectives import CorpusObjective, LossData

FACTS_A_SECOND, LEAST = 110_000, {"facts": 1.5, "paragraphs": 3.5}  # texts a second; times the best other encoder
FARTHEST = 1e-5  # 1 - cosine of float32 on the card to float32 on the CPU
PREMISES, QUERIES, BATCH = 16_041, 2_048, 32  # of training: EntailmentBank's premises, the default batch
WARM_UP = 5  # steps of training
COMPARED = 512  # texts in float32
PART_S = 180.0  # the longest part
Part = Callable[[Rows, Setting], Awaitable[None]]
PACKAGES = ("onnxruntime", "onnxruntime-gpu", "faiss-cpu", "faiss-gpu", "faiss-gpu-cu12", "faiss-gpu-cu13")
RIVALS = ("sentence-transformers", "transformers")


def seconds_a_step(
    model: Path, where: str, precision: Precision, texts: Sequence[str], *, premises: int, batch_size: int
) -> float:
    """The median seconds of a step: encode, softmax over all premises, backward, clip, AdamW.

    The matrix of premises, (premises, dim) float32, is on the device.
    """
    device, rng = torch.device(where), np.random.default_rng(0)
    spec = SpaceSpec.of(model, max_tokens=MAX_TOKENS, query_prefix="", premise_prefix="")
    vectors = nn.functional.normalize(torch.from_numpy(rng.standard_normal((premises, spec.dim), np.float32)), dim=1)
    examples = [
        Example(
            text,
            positives=rng.choice(premises, 3, replace=False),
            refused=rng.choice(premises, 20, replace=False),
            **dict.fromkeys(("excluded", "contradicted", "neutral"), np.array([], dtype=np.int64)),
            grades=np.ones(3),
        )
        for text in texts
    ]
    data = TrainingSet(examples, outside=[], excluded=np.zeros(premises, dtype=bool), dropped_for={})
    batches = Batches.of(model, spec, pad_id_of(model))
    encoders = Encoders(load_encoder(model, spec).to(device))
    queries = Texts(dict(enumerate(texts)), "", batches, device, precision)
    frozen = FrozenVectors(vectors.numpy(), device=device)
    config = JobConfig("made-up", (), batch_size=batch_size)
    described = LossData(full_corpus_softmax, data, queries, frozen, frozen, config)
    objective = CorpusObjective(described)
    learner = Learner(encoders, objective).train()
    optimizer = optim.AdamW(learner.parameters(), lr=1e-5, weight_decay=WEIGHT_DECAY)
    seconds: list[float] = []
    for units in objective.batches(rng, batch_size):
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = learner(units, units)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(learner.parameters(), MAX_GRADIENT_NORM)
        if not math.isfinite(float(loss.detach())) or not math.isfinite(float(norm)):  # waits, as the trainer does
            raise FloatingPointError(f"step {len(seconds) + 1} is not finite")
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[min(WARM_UP, len(seconds) - 1) :])


async def encoder(rows: Rows, setting: Setting) -> None:
    """Texts a second over those of the best other encoder, and the share of what the card can do."""
    product = product_flops(setting)
    rows.note(f"{setting.name}: matrix products in float16, {setting.side} a side", product / 1e12, "TFLOP/s")
    encoders = {"ours": ours(setting.model, setting.device), "torch": plain_torch(setting.model, setting.device)}
    if find_spec("sentence_transformers"):
        encoders["sentence-transformers"] = sentence_transformers(setting.model, setting.device)
    else:
        rows.note("sentence-transformers", "not measured: not installed", "")
    for kind, texts in setting.texts.items():
        lengths = [min(len(one.ids), MAX_TOKENS) for one in tokenizer_of(setting.model).encode_batch_fast(texts)]
        rates = await by_turns(encoders, texts, setting.rounds)
        best = max(rates.keys() - {"ours"}, key=lambda name: rates[name])
        for name, rate in rates.items():
            rows.note(f"{kind} of {statistics.mean(lengths):.0f} tokens: {name}", rate, "texts/s")
        bar = setting.least(LEAST[kind])
        rows.at_least(f"{kind}: ours over {best}", rates["ours"] / rates[best], "x", bar, rates[best])
        if kind == "facts":
            rows.at_least(f"{kind}: ours", rates["ours"], "texts/s", setting.least(FACTS_A_SECOND))
        done = flops_of(open_model(setting.model, "cpu").transformer, lengths) / len(texts) * rates["ours"]
        rows.note(f"{kind}: ours, share of those matrix products", done / product, "", done / 1e12)


async def float32(rows: Rows, setting: Setting) -> None:
    """Vectors in float32 beside those of the CPU, also where torch was told to allow TF32."""
    await beside_cpu(rows, setting, "float32", ours(setting.model, setting.device, half=False))


async def beside_cpu(rows: Rows, setting: Setting, name: str, encode: Encode) -> None:
    """How far vectors in float32 are from those of torch on the CPU."""
    texts = [text for some in setting.texts.values() for text in some[: COMPARED // len(setting.texts)]]
    there, here = await encode(texts), await ours(setting.model, "cpu", half=False)(texts)
    cosines = np.einsum("nd,nd->n", there.astype(np.float64), here.astype(np.float64))
    rows.at_most(f"{name} on {setting.name}: 1 - cosine to the CPU's", float(1 - cosines.min()), "", FARTHEST)


async def training(rows: Rows, setting: Setting) -> None:
    """Seconds a step of full-corpus softmax, the trainer's default, with the matrix of premises on the device."""
    texts = setting.texts["facts"][:QUERIES]
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    for precision in precisions:
        step_s = seconds_a_step(setting.model, setting.device, precision, texts, premises=PREMISES, batch_size=BATCH)
        name = f"training on {setting.name} in {precision}: {BATCH} queries, {PREMISES:,} premises"
        rows.note(name, step_s * 1000, "ms a step")


async def onnxruntime(rows: Rows, setting: Setting) -> None:
    """Texts a second in onnxruntime over those in torch, in half precision; and its float32, without TF32.

    After `index` in one process, products here do not reduce precision either: onnxruntime reads ORT_CUDA_GEMM_OPTIONS
    once, at its first product in half precision, and keeps it to the end. `--only onnxruntime` measures without it.
    """
    half, single = ours_in_onnxruntime(setting)
    encoders = {"ours": ours(setting.model, setting.device), "ours, onnxruntime": half}
    for kind, texts in setting.texts.items():
        rates = await by_turns(encoders, texts, setting.rounds)
        for name, rate in rates.items():
            rows.note(f"{kind}: {name}", rate, "texts/s")
        rows.note(f"{kind}: onnxruntime over torch", rates["ours, onnxruntime"] / rates["ours"], "x")
    await beside_cpu(rows, setting, "float32 in onnxruntime", single)


def of_index(name: str) -> Part:
    """A part that needs faiss and onnxruntime, which may be missing. How cards sum products is afterwards as before."""

    async def part(rows: Rows, setting: Setting) -> None:
        matmul = torch.backends.cuda.matmul
        reduced = matmul.allow_fp16_reduced_precision_reduction
        with patch.dict(os.environ):
            try:
                await getattr(import_module("benchmarks.encoder.gpu_index"), name)(rows, setting)
            finally:
                matmul.allow_fp16_reduced_precision_reduction = reduced

    return part


PARTS: dict[str, Part] = {
    "encoder": encoder,
    "float32": float32,
    "stages": stages,
    "training": training,
    "index": of_index("index"),
    "index-torch": of_index("index_torch"),
    "onnxruntime": onnxruntime,
    "bert-large": bert_large,
    "faiss-gpu": of_index("faiss_gpu"),
}


def kept_at(part: str) -> Path:
    """The file of a part that ran on a card."""
    return KEPT / "gpu" / f"{part}.json"


def measure(rows: Rows, part: str, setting: Setting, commit: str) -> None:
    """Runs a part, and keeps its rows if it ran on a card to its end. A failure is a row."""
    before, begun = len(rows.rows), time.perf_counter()
    try:
        run(PARTS[part](rows, setting))
    except (NotMeasured, ImportError) as error:
        rows.note(part, f"not measured: {error}", "")
        return
    except Exception as error:  # noqa: BLE001 -- the other parts are to be measured
        traceback.print_exc()
        rows.add(part, f"failed: {type(error).__name__}: {str(error)[:300]}", "", "ends", ok=False)
        return
    rows.at_most(f"{part}: the whole part", time.perf_counter() - begun, "s", setting.most(PART_S))
    if not setting.is_whole:
        return
    content = {
        "part": part,
        "command": f"make bench NAME=gpu ARGS='--only {part}'",
        "measured": surroundings() | described(setting) | ({"commit": commit} if commit else {}),
        "rows": [asdict(row) for row in rows.rows[before:]],
    }
    kept_at(part).parent.mkdir(parents=True, exist_ok=True)
    kept_at(part).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def described(setting: Setting) -> dict[str, str]:
    """The card, its driver, and the versions of what computes there."""
    asked = "nvidia-smi --query-gpu=driver_version --format=csv,noheader || echo unknown"
    driver = subprocess.run(asked, shell=True, capture_output=True, text=True, check=False).stdout.split()[0]
    versions = {one.name: one.version for one in distributions() if one.name in {*PACKAGES, *RIVALS}}
    return {"card": setting.name, "driver": driver, "cuda": torch.version.cuda or "", **versions}


def tell(rows: Rows, part: str) -> None:
    """Adds the rows of a part that was kept."""
    content = json.loads(kept_at(part).read_bytes())
    told = content["measured"]
    rows.note(part, f"kept: {told['card']}, {told['day']}, commit {told['commit']}", "")
    for row in content["rows"]:
        rows.add(**row)


def main() -> None:
    """Measures on the card what is not kept, or says why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="directory of a sentence encoder; without it one is made up")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--again", action="store_true", help="measure anew what is kept")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the script")
    parser.add_argument("--share", type=float, default=1.0, help="of texts, rows and layers")
    parser.add_argument("--side", type=int, default=SIDE, help="of the matrix products")
    parser.add_argument("--commit", default="", help="what is measured, where git is not at hand")
    asked = parser.parse_args()
    rows, todo = Rows.of("gpu", asked.only, PARTS), list[str]()
    on_card = asked.device.startswith("cuda")
    for part in filter(asked.only.__contains__, PARTS):
        if on_card and kept_at(part).is_file() and not asked.again:
            tell(rows, part)
        elif on_card and not torch.cuda.is_available():
            rows.note(part, "not measured: torch finds no GPU", "")
        else:
            todo.append(part)
    if todo:
        with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
            model = asked.model or make_model(Path(scratch))
            setting = Setting(model, asked.device, asked.rounds, asked.share, asked.side, asked.model is None)
            for part in todo:
                measure(rows, part, setting, asked.commit)
    if owed := [part for part in PARTS if not kept_at(part).is_file()]:
        rows.note("owed: parts that never ran on a card as a whole", ", ".join(owed), "")
    rows.finish()


if __name__ == "__main__":
    main()
