from aeenc.v1 import index_pb2 as _index_pb2
from aeenc.v1 import registry_pb2 as _registry_pb2
from aeenc.v1 import types_pb2 as _types_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Batching(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BATCHING_UNSPECIFIED: _ClassVar[Batching]
    BATCHING_QUERIES: _ClassVar[Batching]
    BATCHING_ITEMS: _ClassVar[Batching]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_SINGLE: _ClassVar[Mode]
    MODE_SIAMESE: _ClassVar[Mode]
    MODE_DUAL: _ClassVar[Mode]
    MODE_CROSS_ENCODER: _ClassVar[Mode]

class Loss(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOSS_UNSPECIFIED: _ClassVar[Loss]
    LOSS_FULL_CORPUS_SOFTMAX: _ClassVar[Loss]
    LOSS_TRIPLET_MARGIN: _ClassVar[Loss]
    LOSS_PAIRWISE_CONTRASTIVE: _ClassVar[Loss]
    LOSS_SUPERVISED_CONTRASTIVE: _ClassVar[Loss]
    LOSS_MULTIPLE_NEGATIVES_RANKING: _ClassVar[Loss]
    LOSS_GIST: _ClassVar[Loss]
    LOSS_NLI_CLASSIFICATION: _ClassVar[Loss]
    LOSS_REGRESSION: _ClassVar[Loss]
    LOSS_ANALOGY: _ClassVar[Loss]

class Targets(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TARGETS_UNSPECIFIED: _ClassVar[Targets]
    TARGETS_BINARY: _ClassVar[Targets]
    TARGETS_GRADES: _ClassVar[Targets]
    TARGETS_GRADE_DISTRIBUTION: _ClassVar[Targets]

class Negatives(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEGATIVES_UNSPECIFIED: _ClassVar[Negatives]
    NEGATIVES_RETRIEVED: _ClassVar[Negatives]
    NEGATIVES_RANDOM: _ClassVar[Negatives]
    NEGATIVES_NONE: _ClassVar[Negatives]
BATCHING_UNSPECIFIED: Batching
BATCHING_QUERIES: Batching
BATCHING_ITEMS: Batching
MODE_UNSPECIFIED: Mode
MODE_SINGLE: Mode
MODE_SIAMESE: Mode
MODE_DUAL: Mode
MODE_CROSS_ENCODER: Mode
LOSS_UNSPECIFIED: Loss
LOSS_FULL_CORPUS_SOFTMAX: Loss
LOSS_TRIPLET_MARGIN: Loss
LOSS_PAIRWISE_CONTRASTIVE: Loss
LOSS_SUPERVISED_CONTRASTIVE: Loss
LOSS_MULTIPLE_NEGATIVES_RANKING: Loss
LOSS_GIST: Loss
LOSS_NLI_CLASSIFICATION: Loss
LOSS_REGRESSION: Loss
LOSS_ANALOGY: Loss
TARGETS_UNSPECIFIED: Targets
TARGETS_BINARY: Targets
TARGETS_GRADES: Targets
TARGETS_GRADE_DISTRIBUTION: Targets
NEGATIVES_UNSPECIFIED: Negatives
NEGATIVES_RETRIEVED: Negatives
NEGATIVES_RANDOM: Negatives
NEGATIVES_NONE: Negatives

class StartJobRequest(_message.Message):
    __slots__ = ("config",)
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    config: JobConfig
    def __init__(self, config: _Optional[_Union[JobConfig, _Mapping]] = ...) -> None: ...

class JobConfig(_message.Message):
    __slots__ = ("corpus", "run_ids", "idempotency_key", "base_version", "loss", "epochs", "batch_size", "learning_rate", "temperature", "margin", "regularization", "refused_weight", "seed", "validation", "split", "note", "data_sets", "batching", "hard_negatives", "guide_version", "guide_margin", "accumulation", "items_per_epoch", "mode", "initial_share", "targets", "candidates", "negatives", "own_text", "prototypes", "custom_loss", "base_model")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    RUN_IDS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    REGULARIZATION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    DATA_SETS_FIELD_NUMBER: _ClassVar[int]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    HARD_NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    GUIDE_VERSION_FIELD_NUMBER: _ClassVar[int]
    GUIDE_MARGIN_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATION_FIELD_NUMBER: _ClassVar[int]
    ITEMS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    INITIAL_SHARE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    OWN_TEXT_FIELD_NUMBER: _ClassVar[int]
    PROTOTYPES_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_LOSS_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    run_ids: _containers.RepeatedScalarFieldContainer[str]
    idempotency_key: str
    base_version: str
    loss: Loss
    epochs: int
    batch_size: int
    learning_rate: float
    temperature: float
    margin: float
    regularization: float
    refused_weight: float
    seed: int
    validation: _containers.RepeatedCompositeFieldContainer[_types_pb2.GoldQuery]
    split: str
    note: str
    data_sets: _containers.RepeatedScalarFieldContainer[str]
    batching: Batching
    hard_negatives: int
    guide_version: str
    guide_margin: float
    accumulation: int
    items_per_epoch: int
    mode: Mode
    initial_share: float
    targets: Targets
    candidates: _index_pb2.RetrieveMode
    negatives: Negatives
    own_text: _types_pb2.OwnText
    prototypes: int
    custom_loss: str
    base_model: str
    def __init__(self, corpus: _Optional[str] = ..., run_ids: _Optional[_Iterable[str]] = ..., idempotency_key: _Optional[str] = ..., base_version: _Optional[str] = ..., loss: _Optional[_Union[Loss, str]] = ..., epochs: _Optional[int] = ..., batch_size: _Optional[int] = ..., learning_rate: _Optional[float] = ..., temperature: _Optional[float] = ..., margin: _Optional[float] = ..., regularization: _Optional[float] = ..., refused_weight: _Optional[float] = ..., seed: _Optional[int] = ..., validation: _Optional[_Iterable[_Union[_types_pb2.GoldQuery, _Mapping]]] = ..., split: _Optional[str] = ..., note: _Optional[str] = ..., data_sets: _Optional[_Iterable[str]] = ..., batching: _Optional[_Union[Batching, str]] = ..., hard_negatives: _Optional[int] = ..., guide_version: _Optional[str] = ..., guide_margin: _Optional[float] = ..., accumulation: _Optional[int] = ..., items_per_epoch: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., initial_share: _Optional[float] = ..., targets: _Optional[_Union[Targets, str]] = ..., candidates: _Optional[_Union[_index_pb2.RetrieveMode, str]] = ..., negatives: _Optional[_Union[Negatives, str]] = ..., own_text: _Optional[_Union[_types_pb2.OwnText, str]] = ..., prototypes: _Optional[int] = ..., custom_loss: _Optional[str] = ..., base_model: _Optional[str] = ...) -> None: ...

class StartJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "config", "state", "error", "progress", "version", "created_at", "ended_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    config: JobConfig
    state: _types_pb2.WorkState
    error: str
    progress: JobProgress
    version: str
    created_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., config: _Optional[_Union[JobConfig, _Mapping]] = ..., state: _Optional[_Union[_types_pb2.WorkState, str]] = ..., error: _Optional[str] = ..., progress: _Optional[_Union[JobProgress, _Mapping]] = ..., version: _Optional[str] = ..., created_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class JobProgress(_message.Message):
    __slots__ = ("phase", "epochs_done", "steps_done", "steps", "loss", "validation_map", "best_validation_map", "remaining", "queries", "positives", "negatives", "dropped", "skipped", "outside", "gain", "epochs")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_MAP_FIELD_NUMBER: _ClassVar[int]
    BEST_VALIDATION_MAP_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    POSITIVES_FIELD_NUMBER: _ClassVar[int]
    NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    epochs_done: int
    steps_done: int
    steps: int
    loss: float
    validation_map: float
    best_validation_map: float
    remaining: _duration_pb2.Duration
    queries: int
    positives: int
    negatives: int
    dropped: int
    skipped: int
    outside: int
    gain: _registry_pb2.GateComparison
    epochs: int
    def __init__(self, phase: _Optional[str] = ..., epochs_done: _Optional[int] = ..., steps_done: _Optional[int] = ..., steps: _Optional[int] = ..., loss: _Optional[float] = ..., validation_map: _Optional[float] = ..., best_validation_map: _Optional[float] = ..., remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queries: _Optional[int] = ..., positives: _Optional[int] = ..., negatives: _Optional[int] = ..., dropped: _Optional[int] = ..., skipped: _Optional[int] = ..., outside: _Optional[int] = ..., gain: _Optional[_Union[_registry_pb2.GateComparison, _Mapping]] = ..., epochs: _Optional[int] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("job_id", "from_seq")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    from_seq: int
    def __init__(self, job_id: _Optional[str] = ..., from_seq: _Optional[int] = ...) -> None: ...

class WatchJobResponse(_message.Message):
    __slots__ = ("seq", "at", "job")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    seq: int
    at: _timestamp_pb2.Timestamp
    job: Job
    def __init__(self, seq: _Optional[int] = ..., at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id", "request_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    request_id: str
    def __init__(self, job_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class CancelJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ResumeJobRequest(_message.Message):
    __slots__ = ("job_id", "request_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    request_id: str
    def __init__(self, job_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ResumeJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ("job_id", "request_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    request_id: str
    def __init__(self, job_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class DeleteJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteCheckpointRequest(_message.Message):
    __slots__ = ("version", "request_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    version: str
    request_id: str
    def __init__(self, version: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class DeleteCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrainerAdminServiceCollectGarbageRequest(_message.Message):
    __slots__ = ("dry_run", "request_id")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    request_id: str
    def __init__(self, dry_run: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class TrainerAdminServiceCollectGarbageResponse(_message.Message):
    __slots__ = ("garbage",)
    GARBAGE_FIELD_NUMBER: _ClassVar[int]
    garbage: _containers.RepeatedCompositeFieldContainer[_types_pb2.Garbage]
    def __init__(self, garbage: _Optional[_Iterable[_Union[_types_pb2.Garbage, _Mapping]]] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("config", "queries", "training", "trees")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    config: EvaluateConfig
    queries: _containers.RepeatedCompositeFieldContainer[_types_pb2.GoldQuery]
    training: _containers.RepeatedCompositeFieldContainer[_types_pb2.GoldQuery]
    trees: _containers.RepeatedCompositeFieldContainer[GoldTree]
    def __init__(self, config: _Optional[_Union[EvaluateConfig, _Mapping]] = ..., queries: _Optional[_Iterable[_Union[_types_pb2.GoldQuery, _Mapping]]] = ..., training: _Optional[_Iterable[_Union[_types_pb2.GoldQuery, _Mapping]]] = ..., trees: _Optional[_Iterable[_Union[GoldTree, _Mapping]]] = ...) -> None: ...

class GoldTree(_message.Message):
    __slots__ = ("hypothesis", "intermediates", "leaves")
    HYPOTHESIS_FIELD_NUMBER: _ClassVar[int]
    INTERMEDIATES_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    hypothesis: str
    intermediates: _containers.RepeatedScalarFieldContainer[str]
    leaves: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hypothesis: _Optional[str] = ..., intermediates: _Optional[_Iterable[str]] = ..., leaves: _Optional[_Iterable[str]] = ...) -> None: ...

class EvaluateConfig(_message.Message):
    __slots__ = ("corpus", "model", "generation", "retrieval", "ranks", "strict_only", "conditioned")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RETRIEVAL_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STRICT_ONLY_FIELD_NUMBER: _ClassVar[int]
    CONDITIONED_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    model: _types_pb2.ModelSelector
    generation: str
    retrieval: _index_pb2.RetrievalOptions
    ranks: bool
    strict_only: bool
    conditioned: bool
    def __init__(self, corpus: _Optional[str] = ..., model: _Optional[_Union[_types_pb2.ModelSelector, _Mapping]] = ..., generation: _Optional[str] = ..., retrieval: _Optional[_Union[_index_pb2.RetrievalOptions, _Mapping]] = ..., ranks: bool = ..., strict_only: bool = ..., conditioned: bool = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: _types_pb2.EvaluationReport
    def __init__(self, report: _Optional[_Union[_types_pb2.EvaluationReport, _Mapping]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("version", "space_id", "pretrained", "base_version", "job_id", "validation_map", "manifest_sha256", "labels", "created_at", "size_bytes", "dim", "tandem")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PRETRAINED_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_MAP_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    TANDEM_FIELD_NUMBER: _ClassVar[int]
    version: str
    space_id: str
    pretrained: bool
    base_version: str
    job_id: str
    validation_map: float
    manifest_sha256: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    created_at: _timestamp_pb2.Timestamp
    size_bytes: int
    dim: int
    tandem: Tandem
    def __init__(self, version: _Optional[str] = ..., space_id: _Optional[str] = ..., pretrained: bool = ..., base_version: _Optional[str] = ..., job_id: _Optional[str] = ..., validation_map: _Optional[float] = ..., manifest_sha256: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., created_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., size_bytes: _Optional[int] = ..., dim: _Optional[int] = ..., tandem: _Optional[_Union[Tandem, _Mapping]] = ...) -> None: ...

class Tandem(_message.Message):
    __slots__ = ("corpus", "generation", "premise_version", "replaces")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PREMISE_VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    generation: str
    premise_version: str
    replaces: str
    def __init__(self, corpus: _Optional[str] = ..., generation: _Optional[str] = ..., premise_version: _Optional[str] = ..., replaces: _Optional[str] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints", "next_page_token")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    next_page_token: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class TrainerServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrainerServiceGetInfoResponse(_message.Message):
    __slots__ = ("service", "default_space_id", "device", "active_job")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_JOB_FIELD_NUMBER: _ClassVar[int]
    service: _types_pb2.ServiceInfo
    default_space_id: str
    device: str
    active_job: str
    def __init__(self, service: _Optional[_Union[_types_pb2.ServiceInfo, _Mapping]] = ..., default_space_id: _Optional[str] = ..., device: _Optional[str] = ..., active_job: _Optional[str] = ...) -> None: ...
