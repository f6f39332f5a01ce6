"""Measures what GPUs are for: the encoder in half precision beside others, float32 on the card, a step of training.

    python -m benchmarks.encoder.gpu [--model DIR] [--only encoder|float32|training|others] [--rounds 7]

DIR is a sentence-transformers directory with mean pooling. Without it, a model of MiniLM's shape is made up, with
weights from a seed, which change no speed. The script needs torch with CUDA, transformers, tokenizers, structlog,
prometheus-client and opentelemetry-api, the SDK (`PYTHONPATH=clients/python` will do), sentence-transformers as a
rival, and onnxruntime with CUDA for its row. Without a GPU every row says that it was not measured; `--device cpu`
tries the script.

All encoders turn the same texts into vectors in memory, tokenizing included, by turns; medians count.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn, optim

from aeenc.errors import AeencError
from benchmarks.encoder.gpu_encoders import (
    MAX_TOKENS,
    Encode,
    open_model,
    ours,
    ours_in_onnxruntime,
    plain_torch,
    sentence_transformers,
    tokenizer_of,
)
from benchmarks.harness.rows import Rows, run
from services.trainer.jobs.files import Precision
from services.trainer.jobs.job import JobConfig
from services.trainer.jobs.training_set import Example, TrainingSet
from services.trainer.models.batches import Batches
from services.trainer.models.space import SpaceSpec, pad_id_of
from services.trainer.train.data import FrozenVectors, Premises, Queries
from services.trainer.train.encoder import Encoders, load_encoder
from services.trainer.train.loop import MAX_GRADIENT_NORM, WEIGHT_DECAY, Learner
from services.trainer.train.losses import full_corpus_softmax
from services.trainer.train.objectives import CorpusObjective, LossData

LEAST = 1.5
FARTHEST = 1e-5  # 1 - cosine of float32 on the card to float32 on the CPU
ALIKE = 0.99  # the least cosine of an encoder in half precision to ours
SIDE, PRODUCTS = 8192, 20  # of the matrix products that say what the card can do
PREMISES, QUERIES, BATCH = 16_041, 2_048, 32  # of training: EntailmentBank's premises, the default batch
COMPARED = 512  # texts in float32


# Words of a text, and texts, by kind.
SIZES = {"facts": ((8, 24), 16_384), "paragraphs": ((90, 110), 4_096)}
WORDS = [
    f"{a}{b}{c}{d}"
    for a in ("ba", "ce", "di", "fo", "gu")
    for b in "lmnrst"
    for c in ("a", "er", "ing", "s")
    for d in ("", "ton")
]
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MODEL_TOKENS = 512


def make_texts(share: float = 1.0) -> dict[str, list[str]]:
    """Texts by kind, whose words follow Zipf's distribution. `share` of their number."""
    rng = random.Random(0)
    weights = [1 / rank for rank in range(1, len(WORDS) + 1)]
    return {
        kind: [" ".join(rng.choices(WORDS, weights, k=rng.randint(*words))) for _ in range(max(8, int(count * share)))]
        for kind, (words, count) in SIZES.items()
    }


def make_model(directory: Path, shape: Mapping[str, int] = MINILM) -> Path:
    """Writes the model and its tokenizer as a sentence-transformers directory."""
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=2_000, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(WORDS, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MODEL_TOKENS, **names).save_pretrained(
        directory
    )
    torch.manual_seed(0)
    config = BertConfig(vocab_size=30_522, **shape)
    BertModel(config, add_pooling_layer=False).save_pretrained(directory)
    pooling = directory / "1_Pooling"
    pooling.mkdir(exist_ok=True)
    wanted = {"word_embedding_dimension": shape["hidden_size"], "pooling_mode_mean_tokens": True}
    (pooling / "config.json").write_text(json.dumps(wanted))
    package = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{package}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{package}.Pooling"},
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    return directory


WARM_UP = 5  # steps


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
    described = LossData(
        full_corpus_softmax,
        data,
        Queries(data, batches, "", device, pretrained=None, weight=0.0, precision=precision),
        Premises(FrozenVectors(vectors.numpy(), device=device)),
        JobConfig("made-up", (), batch_size=batch_size),
    )
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
        if not math.isfinite(float(loss.detach())) or not math.isfinite(
            float(norm)
        ):  # waits, as the trainer's loop does
            raise FloatingPointError(f"step {len(seconds) + 1} is not finite")
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[WARM_UP:])


@dataclass(frozen=True)
class Setting:
    """What all parts measure with. `side` of the matrix products; `name` of the device."""

    model: Path
    device: str
    rounds: int
    texts: dict[str, list[str]]
    side: int = SIDE

    @property
    def name(self) -> str:
        """The name of the card."""
        return torch.cuda.get_device_name(self.device) if self.device.startswith("cuda") else self.device

    def wait(self) -> None:
        """Waits until the card has computed what it was given."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)


async def encoder(rows: Rows, setting: Setting) -> None:
    """Texts a second over those of the best other encoder, and the share of what the card can do."""
    product = product_flops(setting)
    rows.note(f"{setting.name}: matrix products in float16, {setting.side} a side", product / 1e12, "TFLOP/s")
    encoders = {"ours": ours(setting.model, setting.device), "torch": plain_torch(setting.model, setting.device)}
    if find_spec("sentence_transformers"):
        encoders["sentence-transformers"] = sentence_transformers(setting.model, setting.device)
    else:
        rows.note("sentence-transformers", "not measured: not installed", "")
    try:
        encoders["ours, onnxruntime"] = ours_in_onnxruntime(setting.model, setting.device)
    except (ImportError, AeencError) as error:
        rows.note("ours, onnxruntime", f"not measured: {error}", "")
    for kind, texts in setting.texts.items():
        lengths = [min(len(one.ids), MAX_TOKENS) for one in tokenizer_of(setting.model).encode_batch_fast(texts)]
        rates = await by_turns(encoders, texts, setting.rounds)
        mine, best = (
            max((name for name in rates if name.startswith("ours") == own), key=lambda name: rates[name])
            for own in (True, False)
        )
        for name, rate in rates.items():
            rows.note(f"{kind} of {statistics.mean(lengths):.0f} tokens: {name}", rate, "texts/s")
        rows.at_least(f"{kind}: {mine} over {best}", rates[mine] / rates[best], "x", LEAST, rates[best])
        done = flops_of(setting.model, lengths) / len(texts) * rates[mine]
        rows.note(f"{kind}: {mine}, share of those matrix products", done / product, "", done / 1e12)


async def by_turns(encoders: dict[str, Encode], texts: list[str], rounds: int) -> dict[str, float]:
    """Texts a second of each. A first round warms up and compares their vectors with ours."""
    vectors = {name: await encode(texts) for name, encode in encoders.items()}
    for name, found in vectors.items():
        if (least := float(np.einsum("nd,nd->n", found, vectors["ours"]).min())) < ALIKE:
            raise SystemExit(f"{name} computes other vectors than ours (cosine {least:.4f})")
    rates: dict[str, list[float]] = {name: [] for name in encoders}
    for number in range(rounds):
        for name in list(encoders)[:: 1 if number % 2 else -1]:
            begun = time.perf_counter()
            await encoders[name](texts)
            rates[name].append(len(texts) / (time.perf_counter() - begun))
    return {name: statistics.median(found) for name, found in rates.items()}


def product_flops(setting: Setting) -> float:
    """Operations a second of large matrix products in float16 (bfloat16 on a CPU)."""
    kind = torch.float16 if setting.device.startswith("cuda") else torch.bfloat16
    left, right = (torch.randn(setting.side, setting.side, device=setting.device, dtype=kind) for _ in range(2))
    left @ right
    setting.wait()
    begun = time.perf_counter()
    for _ in range(PRODUCTS):
        left @ right
    setting.wait()
    return PRODUCTS * 2 * float(setting.side) ** 3 / (time.perf_counter() - begun)


def flops_of(directory: Path, lengths: Sequence[int]) -> float:
    """Operations for texts of so many tokens: two for each weight of a layer and token, and attention over the text."""
    transformer = open_model(directory, "cpu").transformer
    weights = sum(one.numel() for name, one in transformer.named_parameters() if "embeddings" not in name)
    config: Any = transformer.config
    pairs = sum(length * length for length in lengths)
    return 2 * weights * sum(lengths) + 4 * config.num_hidden_layers * config.hidden_size * pairs


async def float32(rows: Rows, setting: Setting) -> None:
    """Vectors in float32 beside those of the CPU, also where torch was told to allow TF32."""
    texts = [text for some in setting.texts.values() for text in some[: COMPARED // len(setting.texts)]]
    there, here = [await ours(setting.model, device, half=False)(texts) for device in (setting.device, "cpu")]
    cosines = np.einsum("nd,nd->n", there.astype(np.float64), here.astype(np.float64))
    rows.at_most(f"float32 on {setting.name}: 1 - cosine to the CPU's", float(1 - cosines.min()), "", FARTHEST)


async def training(rows: Rows, setting: Setting) -> None:
    """Seconds a step of full-corpus softmax, the trainer's default, with the matrix of premises on the device."""
    texts = setting.texts["facts"][:QUERIES]
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    for precision in precisions:
        step_s = seconds_a_step(setting.model, setting.device, precision, texts, premises=PREMISES, batch_size=BATCH)
        name = f"training on {setting.name} in {precision}: {BATCH} queries, {PREMISES:,} premises"
        rows.note(name, step_s * 1000, "ms a step")


PARTS: dict[str, Callable[[Rows, Setting], Awaitable[None]]] = {
    "encoder": encoder,
    "float32": float32,
    "training": training,
}


def main() -> None:
    """Measures on the card, or says why not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="directory of a sentence encoder; without it one is made up")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the script")
    parser.add_argument("--share", type=float, default=1.0, help="of the texts")
    parser.add_argument("--side", type=int, default=SIDE, help="of the matrix products")
    asked = parser.parse_args()
    rows, parts = Rows("gpu"), [asked.only] if asked.only else list(PARTS)
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        for part in parts:
            rows.note(part, "not measured: torch finds no GPU", "")
        rows.finish()
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        model = asked.model or make_model(Path(scratch))
        setting = Setting(model, asked.device, asked.rounds, make_texts(asked.share), asked.side)
        for part in parts:
            run(PARTS[part](rows, setting))
    rows.finish()


if __name__ == "__main__":
    main()
