"""Starts the encoder: `python -m services.encoder`."""

from __future__ import annotations

import os
from dataclasses import replace

from aeenc.v1 import encoder_pb2_grpc
from services.encoder.batching.admission import CPU_QUEUED_TOKENS, GPU_QUEUED_TOKENS, Admission, CostModel
from services.encoder.batching.batcher import Batcher
from services.encoder.batching.breaker import Breaker
from services.encoder.batching.encoder import Encoder
from services.encoder.batching.queues import CPU_BATCH_ITEMS, CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, GPU_WORKERS
from services.encoder.metrics import EncoderMetrics, ServedLabels
from services.encoder.rollout.candidates import CandidateLoader
from services.encoder.rollout.follower import Follower
from services.encoder.rollout.history import SwapHistory
from services.encoder.rollout.loading import LoadOptions
from services.encoder.rollout.versions import Versions
from services.encoder.runtime.torch_session import torch_device_of
from services.encoder.servicer import EncoderServicer
from services.encoder.settings import EncoderSettings
from services.kit.credentials.gate import caller
from services.kit.limits import Limits
from services.kit.logs import get
from services.kit.server import GrpcServer, run
from services.kit.settings import usable_cores
from services.onnx_devices import CPU, providers_of
from services.store.objects import open_store
from services.store.redis import connect
from services.store.registry import Registry

log = get(__name__)


def build(settings: EncoderSettings) -> GrpcServer:
    """Wires the encoder."""
    options, workers, handicap = _options(settings)
    # The library's own pool: on a CPU it costs more than it saves, on a GPU many cores must tokenize.
    os.environ["TOKENIZERS_PARALLELISM"] = str(options.on_gpu).lower()
    server = GrpcServer(settings)
    metrics = EncoderMetrics(server.metrics)
    versions, history, cost = Versions(), SwapHistory(metrics), CostModel(workers)
    server.metrics.register(ServedLabels(versions.labels))
    runtime = _name_of(options)
    metrics.runtime.labels(runtime).set(0 if handicap else 1)
    if handicap:
        log.warning("computes on a CPU", reason=handicap)
    redis = connect(settings.redis_url, **settings.redis())
    registry = Registry(redis, settings.namespace)
    follower = Follower(
        registry,
        CandidateLoader(
            registry,
            open_store(settings.artifacts_dir, settings.artifacts_url, settings.artifacts_cache_bytes),
            options,
            load_s=settings.load_s,
            loaded_bytes=settings.loaded_bytes,
        ),
        versions,
        history,
        server.readiness,
        instance=settings.instance,
        space_id=settings.space_id,
        state_dir=settings.state_dir,
        poll_s=settings.poll_s,
        faster=options.faster,
        handicap=handicap,
    )
    limits = Limits(
        message_bytes=settings.message_bytes,
        items=settings.max_items,
        text_bytes=settings.text_bytes,
        queued_tokens=settings.queued_tokens or (GPU_QUEUED_TOKENS if options.on_gpu else CPU_QUEUED_TOKENS),
    )
    batcher = Batcher(
        workers=workers,
        batch_items=_batch(settings, options.on_gpu)[0],
        batch_tokens=options.batch_tokens,
        stuck_s=settings.stuck_s,
        cost=cost,
        metrics=metrics,
        of_pairs=_batch(settings, options.pairs_on_gpu),
    )
    breaker = Breaker(versions, batcher, follower.show_readiness)
    admission = Admission(limits.queued_tokens, cost, metrics)
    encoder = Encoder(
        versions,
        batcher,
        admission,
        breaker,
        limits,
        metrics,
        lambda tokens: caller().spend(tokens),
        pooled=options.on_gpu,
    )
    servicer = EncoderServicer(server, encoder, versions, history, limits, (runtime, handicap))
    server.add(encoder_pb2_grpc.add_EncoderServiceServicer_to_server, servicer, "aeenc.v1.EncoderService")

    async def close() -> None:
        await follower.stop()
        await encoder.close()
        await redis.aclose()

    server.on_start(follower.start)
    server.on_stop(close)
    return server


def _options(settings: EncoderSettings) -> tuple[LoadOptions, int, str]:
    """Returns how models are loaded, by how many workers they compute, and why not on the CUDA that was installed."""
    torch_device = reason = ""
    if settings.runtime == "torch":
        torch_device, reason = torch_device_of(settings.device, settings.gpu_bytes)
    # With torch, of cross-encoders only, which compute on a CPU where this onnxruntime cannot do so on torch's card.
    placement = providers_of("encoder", torch_device or settings.device, settings.gpu_bytes, or_cpu=bool(torch_device))
    options = LoadOptions(settings.model_bytes, placement, torch_device)
    options = replace(options, batch_tokens=_batch(settings, options.on_gpu)[1])
    workers = settings.workers or (GPU_WORKERS if options.on_gpu and options.pairs_on_gpu else usable_cores())
    return options, workers, reason if torch_device else placement.reason


def _batch(settings: EncoderSettings, on_gpu: bool) -> tuple[int, int]:
    """Returns the most texts and the most padded tokens in a batch, as set or else as the device likes them."""
    items, tokens = (0, GPU_BATCH_TOKENS) if on_gpu else (CPU_BATCH_ITEMS, CPU_BATCH_TOKENS)
    return settings.batch_items or items, settings.batch_tokens or tokens


def _name_of(options: LoadOptions) -> str:
    where = f"torch/{options.torch_device}" if options.torch_device else f"onnxruntime/{options.placement.providers[0]}"
    are_apart = options.on_gpu and not options.pairs_on_gpu
    return where + (f", cross-encoders onnxruntime/{CPU}" if are_apart else "")


if __name__ == "__main__":
    run(build, EncoderSettings.from_command_line())
