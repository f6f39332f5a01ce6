"""`python -m services.trainer`: wires the trainer and the registry."""

from __future__ import annotations

from aeenc.encoder import EncoderClient
from aeenc.index import IndexClient
from aeenc.sampler import SamplerClient
from aeenc.transport.channel import Channel
from aeenc.v1 import registry_pb2_grpc, trainer_pb2_grpc
from services.corpus.holds import GenerationHolds
from services.kit.limits import Limits
from services.kit.server import GrpcServer, run
from services.store.durability import warn_unless_durable
from services.store.formats import made_of
from services.store.objects import open_store
from services.store.redis import connect, key_prefix
from services.store.registry import Registry
from services.trainer.evaluation.evaluator import Evaluator
from services.trainer.jobs.files import ComputeOptions
from services.trainer.jobs.garbage import Deletion, Retention
from services.trainer.jobs.job import JobStore
from services.trainer.jobs.losses import Configured
from services.trainer.jobs.pair_sources import DataSets, SampledPairs
from services.trainer.jobs.runner import JobRunner
from services.trainer.jobs.tandem_building import TandemBuilder
from services.trainer.jobs.training_jobs import TrainingJobs
from services.trainer.registry.checkpoints import Checkpoints
from services.trainer.registry.child import Device
from services.trainer.registry.operator_models import OperatorModels
from services.trainer.registry.publishing import Publisher
from services.trainer.registry.tandems import TandemPublisher, Tandems
from services.trainer.servicer import RegistryAdminServicer, TrainerAdminServicer, TrainerServicer
from services.trainer.settings import TrainerSettings

HOLD_S = 5.0  # an index that is away keeps no job from its start


def build(settings: TrainerSettings) -> GrpcServer:
    """Builds the trainer, ready to start."""
    server = GrpcServer(settings)
    redis = connect(settings.redis_url, **settings.redis())
    registry = Registry(redis, settings.namespace)
    checkpoints = Checkpoints(
        open_store(settings.artifacts_dir, settings.artifacts_url, settings.artifacts_cache_bytes), registry
    )
    names = ("max_tokens", "query_prefix", "premise_prefix", "pooling", "premise_precision", "fp16")
    options = {name: getattr(settings, name) for name in names}
    models = OperatorModels(checkpoints, registry, settings.state_dir)
    store = JobStore(redis, settings.namespace)
    pairs = SampledPairs(SamplerClient(Channel(settings.sampler_target, **settings.peer())))
    data_sets = DataSets(settings.data_sets, settings.text_bytes)
    index_admin = Channel(settings.index_target, **settings.peer(admin=True))
    index = IndexClient(Channel(settings.index_target, **settings.peer()), index_admin)
    tandems = Tandems(redis, settings.namespace)
    building = TandemBuilder(registry, index, tandems, store, checkpoints.store)
    holding = Channel(settings.index_target, **{**settings.peer(admin=True), "timeout_s": HOLD_S, "retry": False})
    holds = GenerationHolds(redis, store.keys, IndexClient(holding))
    jobs_dir = settings.state_dir / "jobs"
    configured = Configured(settings.losses, settings.base_models)
    runner = JobRunner(
        store,
        checkpoints,
        pairs,
        data_sets,
        server.readiness,
        tandems=building,
        index=index,
        holds=holds,
        instance=settings.instance,
        jobs_dir=jobs_dir,
        means=made_of(ComputeOptions, vars(settings)),
        configured=configured,
        lease_s=settings.lease_s,
        poll_s=settings.poll_s,
    )
    deletion = Deletion(
        store,
        checkpoints,
        registry,
        tandems,
        index,
        building,
        holds,
        redis,
        Retention(settings.job_keep_s, settings.jobs_kept, settings.checkpoint_keep_s, settings.checkpoints_kept),
        lease=f"{key_prefix(settings.namespace)}trainer-garbage",
        jobs_dir=jobs_dir,
        grace_s=settings.grace_s,
    )
    device = Device(settings.device, settings.gpu_bytes)
    limits = Limits(settings.message_bytes, settings.max_items, settings.text_bytes, tokens=settings.max_tokens)
    jobs = TrainingJobs(store, checkpoints, pairs, data_sets, runner, holds, limits, configured)
    evaluator = Evaluator(
        checkpoints.store,
        EncoderClient(Channel(settings.encoder_target, **settings.peer())),
        index,
        limits,
    )
    server.add(
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
        TrainerServicer(server, jobs, evaluator, checkpoints, models, tandems, device),
        "aeenc.v1.TrainerService",
    )
    server.add(
        registry_pb2_grpc.add_RegistryAdminServiceServicer_to_server,
        RegistryAdminServicer(
            Publisher(
                registry,
                checkpoints,
                models,
                TandemPublisher(registry, index, tandems, checkpoints.store, models),
            )
        ),
        "aeenc.v1.RegistryAdminService",
        admin=True,
    )

    server.add(
        trainer_pb2_grpc.add_TrainerAdminServiceServicer_to_server,
        TrainerAdminServicer(deletion),
        "aeenc.v1.TrainerAdminService",
        admin=True,
    )

    async def start() -> None:
        await warn_unless_durable(redis)
        deletion.start()  # first: what is being removed cannot be registered
        pinned = settings.base_model_sha256, settings.base_precision
        problems = [
            await models.ensure_base_model(settings.base_model, options, *pinned),
            await models.ensure_cross_encoder(settings.cross_encoder),
        ]
        runner.start("; ".join(filter(None, problems)))  # the runner's first look at Redis makes the service ready
        device.ask()

    server.on_start(start)
    # The last one is called first.
    closing = (holds.close, index_admin.close, evaluator.close, pairs.close, device.close, runner.stop, deletion.stop)
    for close in (redis.aclose, *closing):
        server.on_stop(close)
    return server


if __name__ == "__main__":
    run(build, TrainerSettings.from_command_line())
