"""Encoders to compare on a GPU, each from texts to unit vectors in memory: ours, plain torch, sentence-transformers."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from aeenc.errors import FailedPrecondition
from benchmarks.encoder.gpu_setting import Setting
from services.encoder.batching.admission import CostModel
from services.encoder.batching.batcher import Batcher
from services.encoder.batching.encoder import TOKENIZERS
from services.encoder.batching.queues import GPU_BATCH_TOKENS, GPU_WORKERS
from services.encoder.metrics import EncoderMetrics
from services.encoder.runtime.model import Tokenization
from services.encoder.runtime.runners import EMBEDDING, PaddedRunner, Session, Tokens
from services.encoder.runtime.torch_session import session_of
from services.transformer import PooledTransformer, load_transformer

Encode = Callable[[Sequence[Any]], Awaitable[NDArray[np.float32]]]
Tokenize = Callable[[Sequence[Any]], list[Tokens]]
MAX_TOKENS = 256
ALIKE = 0.99  # the least cosine of an encoder in half precision to ours
CALL, CALLERS = 1024, 8  # texts a call, calls at a time: as in a build
PARALLEL = {"TOKENIZERS_PARALLELISM": "true"}  # on all cores, as the encoder does on a GPU
BATCHES = (64, 256, 1024)  # of sentence-transformers, of which the fastest counts


def tokenizer_of(directory: Path) -> Tokenizer:
    """Reads the tokenizer as the encoder does."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def open_model(directory: Path, device: str) -> PooledTransformer:
    """Opens the model in float32 as the encoder's torch runtime does."""
    return PooledTransformer(load_transformer(directory), "mean").to(device).eval().requires_grad_(False)


def dim_of(model: PooledTransformer) -> int:
    """The dimensions of its vectors."""
    config: Any = model.transformer.config
    return int(config.hidden_size)


def ours(directory: Path, device: str, *, half: bool = True) -> Encode:
    """The encoder's own path in torch: all cores tokenize, batches are cut by tokens."""
    model = open_model(directory, device)
    return batched(session_of(model, device, half=half), dim_of(model), tokenizing(directory))


def tokenizing(directory: Path) -> Tokenize:
    """The encoder's own way from texts to token ids."""
    tokenization = Tokenization(tokenizer_of(directory), MAX_TOKENS)
    return lambda texts: tokenization.texts(texts, truncate=True).tokens


def batched(
    session: Session, dim: int, tokenize: Tokenize, *, callers: int = CALLERS, workers: int = GPU_WORKERS
) -> Encode:
    """The encoder's own path over any session on a GPU, as its service runs it by default.

    `list` in place of `tokenize` encodes token ids.
    """
    runner = PaddedRunner(session, pad_id=0, dim=dim)

    async def encode(texts: Sequence[Any]) -> NDArray[np.float32]:
        metrics, cost = EncoderMetrics(CollectorRegistry()), CostModel(workers)
        batcher = Batcher(
            workers=workers, batch_items=0, batch_tokens=GPU_BATCH_TOKENS, stuck_s=600, cost=cost, metrics=metrics
        )
        calls, tokenizers = asyncio.Semaphore(callers), asyncio.Semaphore(TOKENIZERS)

        async def call(part: Sequence[Any]) -> NDArray[np.float32]:
            async with calls:
                async with tokenizers:
                    tokens = await asyncio.to_thread(tokenize, part)
                return (await batcher.encode(runner, tokens, "bulk")).rows

        try:
            with patch.dict(os.environ, PARALLEL):
                parts = [texts[start : start + CALL] for start in range(0, len(texts), CALL)]
                return np.concatenate(await asyncio.gather(*map(call, parts)))
        finally:
            await batcher.close()

    return encode


def ours_in_onnxruntime(setting: Setting) -> tuple[Encode, Encode]:
    """The encoder's own path in onnxruntime, in half and in single precision, over what the trainer's code exports.

    Raises NotMeasured without this device, FailedPrecondition without a model in half precision.
    """
    from services.encoder.runtime.onnx_session import open_session
    from services.store.artifacts import ArtifactStore
    from services.trainer.train.export.checkpoint import export_pretrained
    from services.trainer.train.export.quantization import FP16_FILE

    directory, placement = setting.model, setting.placement("encoder")
    request = {
        "directory": str(directory),
        "base_model": directory.name,
        "max_tokens": MAX_TOKENS,
        "query_prefix": "",
        "premise_prefix": "",
        "fp16": True,
    }
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        store = ArtifactStore(Path(scratch))
        artifact = store.open("checkpoints", export_pretrained(store, request))
        if FP16_FILE not in artifact.files:
            raise FailedPrecondition(f"no {FP16_FILE}: {artifact.meta['fp16']}")
        half, single = (
            batched(
                open_session(artifact.file(name), placement, EMBEDDING),
                int(artifact.meta["dim"]),
                tokenizing(directory),
            )
            for name in (FP16_FILE, "model.onnx")
        )
        return half, single


def plain_torch(directory: Path, device: str) -> Encode:
    """Weights in half precision; texts tokenized together, sorted by length, cut by tokens; one wait at the end."""
    from transformers import AutoModel

    half: Any = torch.float16
    model = AutoModel.from_pretrained(directory, local_files_only=True, dtype=half, add_pooling_layer=False)
    model = model.to(device).eval().requires_grad_(False)
    tokenizer = tokenizer_of(directory)
    tokenizer.enable_truncation(MAX_TOKENS)

    @torch.inference_mode()
    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        with patch.dict(os.environ, PARALLEL):
            ids = [one.ids for one in tokenizer.encode_batch_fast(list(texts))]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        rows: list[torch.Tensor] = []
        for batch in _by_tokens([ids[row] for row in order]):
            padded = np.zeros((len(batch), len(batch[-1])), dtype=np.int64)
            lengths = np.array([len(one) for one in batch])
            inside = np.arange(padded.shape[1]) < lengths[:, None]
            padded[inside] = np.concatenate([np.array(one) for one in batch])
            mask = torch.from_numpy(inside).to(device, non_blocking=True)
            hidden = model(
                input_ids=torch.from_numpy(padded).to(device, non_blocking=True), attention_mask=mask.long()
            ).last_hidden_state
            summed = (hidden * mask[..., None]).sum(1, dtype=torch.float32)
            rows.append(torch.nn.functional.normalize(summed, dim=1))
        vectors = torch.cat(rows).cpu().numpy()
        found = np.empty_like(vectors)
        found[order] = vectors
        return found

    return _in_thread(encode)


def sentence_transformers(directory: Path, device: str) -> Encode:
    """Its own `encode` in half precision, with the batch size that is fastest for these texts."""
    from sentence_transformers import SentenceTransformer

    model: Any = SentenceTransformer(str(directory), device=device, local_files_only=True).half()
    model.max_seq_length = MAX_TOKENS
    fastest: dict[int, int] = {}  # by the number of texts

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        if len(texts) not in fastest:
            fastest[len(texts)] = min(BATCHES, key=lambda size: _seconds(lambda: run(texts, size)))
        return run(texts, fastest[len(texts)])

    def run(texts: Sequence[str], size: int) -> NDArray[np.float32]:
        with patch.dict(os.environ, PARALLEL):
            vectors = model.encode(
                list(texts), batch_size=size, normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
            )
        return np.asarray(vectors, dtype=np.float32)

    return _in_thread(encode)


async def by_turns(encoders: Mapping[str, Encode], texts: Sequence[Any], rounds: int) -> dict[str, float]:
    """Texts a second of each. A first round warms up and compares their vectors with ours."""
    vectors = {name: await encode(texts) for name, encode in encoders.items()}
    for name, found in vectors.items():
        if (least := float(np.einsum("nd,nd->n", found, vectors["ours"]).min())) < ALIKE:
            raise ValueError(f"{name} computes other vectors than ours (cosine {least:.4f})")
    rates: dict[str, list[float]] = {name: [] for name in encoders}
    for number in range(rounds):
        for name in list(encoders)[:: 1 if number % 2 else -1]:
            begun = time.perf_counter()
            await encoders[name](texts)
            rates[name].append(len(texts) / (time.perf_counter() - begun))
    return {name: statistics.median(found) for name, found in rates.items()}


def _in_thread(encode: Callable[[Sequence[str]], NDArray[np.float32]]) -> Encode:
    async def awaited(texts: Sequence[str]) -> NDArray[np.float32]:
        return await asyncio.to_thread(encode, texts)

    return awaited


def _by_tokens(ids: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    """Cuts texts that are sorted by length into batches of at most so many padded tokens as ours."""
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or (end - start + 1) * len(ids[end]) > GPU_BATCH_TOKENS:
            yield ids[start:end]
            start = end


def _seconds(run: Callable[[], object]) -> float:
    run()
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
