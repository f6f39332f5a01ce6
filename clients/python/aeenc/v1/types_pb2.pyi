from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvaluationPartKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVALUATION_PART_KIND_UNSPECIFIED: _ClassVar[EvaluationPartKind]
    EVALUATION_PART_KIND_QUERY_SEEN: _ClassVar[EvaluationPartKind]
    EVALUATION_PART_KIND_QUERY_UNSEEN: _ClassVar[EvaluationPartKind]
    EVALUATION_PART_KIND_PREMISE_SEEN: _ClassVar[EvaluationPartKind]
    EVALUATION_PART_KIND_PREMISE_UNSEEN: _ClassVar[EvaluationPartKind]
    EVALUATION_PART_KIND_PAIR_SEEN: _ClassVar[EvaluationPartKind]
    EVALUATION_PART_KIND_PAIR_UNSEEN: _ClassVar[EvaluationPartKind]
    EVALUATION_PART_KIND_NOT_CONDITIONED: _ClassVar[EvaluationPartKind]

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    D_TYPE_UNSPECIFIED: _ClassVar[DType]
    D_TYPE_FLOAT32: _ClassVar[DType]
    D_TYPE_FLOAT16: _ClassVar[DType]

class OwnText(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OWN_TEXT_UNSPECIFIED: _ClassVar[OwnText]
    OWN_TEXT_EXCLUDED: _ClassVar[OwnText]
    OWN_TEXT_NEGATIVE: _ClassVar[OwnText]

class PairSign(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAIR_SIGN_UNSPECIFIED: _ClassVar[PairSign]
    PAIR_SIGN_POSITIVE: _ClassVar[PairSign]
    PAIR_SIGN_NEGATIVE: _ClassVar[PairSign]
    PAIR_SIGN_SKIPPED: _ClassVar[PairSign]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_FLOAT32: _ClassVar[Precision]
    PRECISION_FLOAT16: _ClassVar[Precision]
    PRECISION_INT8: _ClassVar[Precision]

class WorkState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORK_STATE_UNSPECIFIED: _ClassVar[WorkState]
    WORK_STATE_PENDING: _ClassVar[WorkState]
    WORK_STATE_RUNNING: _ClassVar[WorkState]
    WORK_STATE_SUCCEEDED: _ClassVar[WorkState]
    WORK_STATE_FAILED: _ClassVar[WorkState]
    WORK_STATE_CANCELLED: _ClassVar[WorkState]

class ServiceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVICE_STATE_UNSPECIFIED: _ClassVar[ServiceState]
    SERVICE_STATE_STARTING: _ClassVar[ServiceState]
    SERVICE_STATE_SERVING: _ClassVar[ServiceState]
    SERVICE_STATE_DEGRADED: _ClassVar[ServiceState]
    SERVICE_STATE_DRAINING: _ClassVar[ServiceState]

class Truncate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATE_UNSPECIFIED: _ClassVar[Truncate]
    TRUNCATE_ERROR: _ClassVar[Truncate]
    TRUNCATE_END: _ClassVar[Truncate]
EVALUATION_PART_KIND_UNSPECIFIED: EvaluationPartKind
EVALUATION_PART_KIND_QUERY_SEEN: EvaluationPartKind
EVALUATION_PART_KIND_QUERY_UNSEEN: EvaluationPartKind
EVALUATION_PART_KIND_PREMISE_SEEN: EvaluationPartKind
EVALUATION_PART_KIND_PREMISE_UNSEEN: EvaluationPartKind
EVALUATION_PART_KIND_PAIR_SEEN: EvaluationPartKind
EVALUATION_PART_KIND_PAIR_UNSEEN: EvaluationPartKind
EVALUATION_PART_KIND_NOT_CONDITIONED: EvaluationPartKind
D_TYPE_UNSPECIFIED: DType
D_TYPE_FLOAT32: DType
D_TYPE_FLOAT16: DType
OWN_TEXT_UNSPECIFIED: OwnText
OWN_TEXT_EXCLUDED: OwnText
OWN_TEXT_NEGATIVE: OwnText
PAIR_SIGN_UNSPECIFIED: PairSign
PAIR_SIGN_POSITIVE: PairSign
PAIR_SIGN_NEGATIVE: PairSign
PAIR_SIGN_SKIPPED: PairSign
PRECISION_UNSPECIFIED: Precision
PRECISION_FLOAT32: Precision
PRECISION_FLOAT16: Precision
PRECISION_INT8: Precision
WORK_STATE_UNSPECIFIED: WorkState
WORK_STATE_PENDING: WorkState
WORK_STATE_RUNNING: WorkState
WORK_STATE_SUCCEEDED: WorkState
WORK_STATE_FAILED: WorkState
WORK_STATE_CANCELLED: WorkState
SERVICE_STATE_UNSPECIFIED: ServiceState
SERVICE_STATE_STARTING: ServiceState
SERVICE_STATE_SERVING: ServiceState
SERVICE_STATE_DEGRADED: ServiceState
SERVICE_STATE_DRAINING: ServiceState
TRUNCATE_UNSPECIFIED: Truncate
TRUNCATE_ERROR: Truncate
TRUNCATE_END: Truncate

class Embeddings(_message.Message):
    __slots__ = ("data", "dtype", "rows", "dim")
    DATA_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    dtype: DType
    rows: int
    dim: int
    def __init__(self, data: _Optional[bytes] = ..., dtype: _Optional[_Union[DType, str]] = ..., rows: _Optional[int] = ..., dim: _Optional[int] = ...) -> None: ...

class ModelSelector(_message.Message):
    __slots__ = ("label", "version")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    label: str
    version: str
    def __init__(self, label: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class Premise(_message.Message):
    __slots__ = ("id", "text", "aliases", "splits", "tags")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    splits: _containers.RepeatedScalarFieldContainer[str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., splits: _Optional[_Iterable[str]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class RankedPremise(_message.Message):
    __slots__ = ("premise", "rank", "score")
    PREMISE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    premise: Premise
    rank: int
    score: float
    def __init__(self, premise: _Optional[_Union[Premise, _Mapping]] = ..., rank: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class PremiseSet(_message.Message):
    __slots__ = ("premise_ids",)
    PREMISE_IDS_FIELD_NUMBER: _ClassVar[int]
    premise_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, premise_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GoldQuery(_message.Message):
    __slots__ = ("text", "premises", "grades", "before_id", "only_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PREMISES_FIELD_NUMBER: _ClassVar[int]
    GRADES_FIELD_NUMBER: _ClassVar[int]
    BEFORE_ID_FIELD_NUMBER: _ClassVar[int]
    ONLY_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    premises: _containers.RepeatedScalarFieldContainer[str]
    grades: _containers.RepeatedScalarFieldContainer[float]
    before_id: str
    only_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, text: _Optional[str] = ..., premises: _Optional[_Iterable[str]] = ..., grades: _Optional[_Iterable[float]] = ..., before_id: _Optional[str] = ..., only_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("seq", "query", "premise_id", "premise", "sign", "provenance", "reason")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    PREMISE_ID_FIELD_NUMBER: _ClassVar[int]
    PREMISE_FIELD_NUMBER: _ClassVar[int]
    SIGN_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    seq: int
    query: str
    premise_id: str
    premise: str
    sign: PairSign
    provenance: Provenance
    reason: str
    def __init__(self, seq: _Optional[int] = ..., query: _Optional[str] = ..., premise_id: _Optional[str] = ..., premise: _Optional[str] = ..., sign: _Optional[_Union[PairSign, str]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Garbage(_message.Message):
    __slots__ = ("kind", "id", "reason", "bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    id: str
    reason: str
    bytes: int
    def __init__(self, kind: _Optional[str] = ..., id: _Optional[str] = ..., reason: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("run_id", "node_id", "rank", "score", "model_version", "generation", "oracle", "annotator", "judged_at", "grade", "amended", "note")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ORACLE_FIELD_NUMBER: _ClassVar[int]
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    JUDGED_AT_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    AMENDED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    node_id: str
    rank: int
    score: float
    model_version: str
    generation: str
    oracle: str
    annotator: str
    judged_at: _timestamp_pb2.Timestamp
    grade: float
    amended: bool
    note: str
    def __init__(self, run_id: _Optional[str] = ..., node_id: _Optional[str] = ..., rank: _Optional[int] = ..., score: _Optional[float] = ..., model_version: _Optional[str] = ..., generation: _Optional[str] = ..., oracle: _Optional[str] = ..., annotator: _Optional[str] = ..., judged_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., grade: _Optional[float] = ..., amended: bool = ..., note: _Optional[str] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("space_id", "name", "versions", "revision", "previous_versions", "moved_at", "share", "precision")
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MOVED_AT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    space_id: str
    name: str
    versions: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    previous_versions: _containers.RepeatedScalarFieldContainer[str]
    moved_at: _timestamp_pb2.Timestamp
    share: float
    precision: Precision
    def __init__(self, space_id: _Optional[str] = ..., name: _Optional[str] = ..., versions: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., previous_versions: _Optional[_Iterable[str]] = ..., moved_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., share: _Optional[float] = ..., precision: _Optional[_Union[Precision, str]] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("instance", "label", "ok", "reason", "finished_at", "duration")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    instance: str
    label: Label
    ok: bool
    reason: str
    finished_at: _timestamp_pb2.Timestamp
    duration: _duration_pb2.Duration
    def __init__(self, instance: _Optional[str] = ..., label: _Optional[_Union[Label, _Mapping]] = ..., ok: bool = ..., reason: _Optional[str] = ..., finished_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("total", "queue", "tokenize", "compute", "encode")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    total: _duration_pb2.Duration
    queue: _duration_pb2.Duration
    tokenize: _duration_pb2.Duration
    compute: _duration_pb2.Duration
    encode: _duration_pb2.Duration
    def __init__(self, total: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., tokenize: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., compute: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., encode: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ServiceInfo(_message.Message):
    __slots__ = ("software_version", "instance", "state", "state_reason", "started_at", "limits")
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    software_version: str
    instance: str
    state: ServiceState
    state_reason: str
    started_at: _timestamp_pb2.Timestamp
    limits: Limits
    def __init__(self, software_version: _Optional[str] = ..., instance: _Optional[str] = ..., state: _Optional[_Union[ServiceState, str]] = ..., state_reason: _Optional[str] = ..., started_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("message_bytes", "items", "text_bytes", "k", "tokens", "queued_items", "queued_tokens")
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    message_bytes: int
    items: int
    text_bytes: int
    k: int
    tokens: int
    queued_items: int
    queued_tokens: int
    def __init__(self, message_bytes: _Optional[int] = ..., items: _Optional[int] = ..., text_bytes: _Optional[int] = ..., k: _Optional[int] = ..., tokens: _Optional[int] = ..., queued_items: _Optional[int] = ..., queued_tokens: _Optional[int] = ...) -> None: ...

class EvaluationReport(_message.Message):
    __slots__ = ("strict", "paper", "candidates", "queries", "pairs", "model_version", "generation", "rerank_versions", "parts", "hypothesis_alone", "gold_tree", "ranks", "graded")
    STRICT_FIELD_NUMBER: _ClassVar[int]
    PAPER_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RERANK_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_ALONE_FIELD_NUMBER: _ClassVar[int]
    GOLD_TREE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    GRADED_FIELD_NUMBER: _ClassVar[int]
    strict: RetrievalMetrics
    paper: RetrievalMetrics
    candidates: int
    queries: int
    pairs: int
    model_version: str
    generation: str
    rerank_versions: _containers.RepeatedScalarFieldContainer[str]
    parts: _containers.RepeatedCompositeFieldContainer[EvaluationPart]
    hypothesis_alone: TreeMetrics
    gold_tree: TreeMetrics
    ranks: _containers.RepeatedCompositeFieldContainer[GoldRanks]
    graded: GradedMetrics
    def __init__(self, strict: _Optional[_Union[RetrievalMetrics, _Mapping]] = ..., paper: _Optional[_Union[RetrievalMetrics, _Mapping]] = ..., candidates: _Optional[int] = ..., queries: _Optional[int] = ..., pairs: _Optional[int] = ..., model_version: _Optional[str] = ..., generation: _Optional[str] = ..., rerank_versions: _Optional[_Iterable[str]] = ..., parts: _Optional[_Iterable[_Union[EvaluationPart, _Mapping]]] = ..., hypothesis_alone: _Optional[_Union[TreeMetrics, _Mapping]] = ..., gold_tree: _Optional[_Union[TreeMetrics, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[GoldRanks, _Mapping]]] = ..., graded: _Optional[_Union[GradedMetrics, _Mapping]] = ...) -> None: ...

class GradedMetrics(_message.Message):
    __slots__ = ("ndcg_linear", "ndcg_exponential", "oracle_ndcg_linear", "oracle_ndcg_exponential", "recalls", "ndcg_textgraphs", "oracle_ndcg_textgraphs")
    NDCG_LINEAR_FIELD_NUMBER: _ClassVar[int]
    NDCG_EXPONENTIAL_FIELD_NUMBER: _ClassVar[int]
    ORACLE_NDCG_LINEAR_FIELD_NUMBER: _ClassVar[int]
    ORACLE_NDCG_EXPONENTIAL_FIELD_NUMBER: _ClassVar[int]
    RECALLS_FIELD_NUMBER: _ClassVar[int]
    NDCG_TEXTGRAPHS_FIELD_NUMBER: _ClassVar[int]
    ORACLE_NDCG_TEXTGRAPHS_FIELD_NUMBER: _ClassVar[int]
    ndcg_linear: float
    ndcg_exponential: float
    oracle_ndcg_linear: float
    oracle_ndcg_exponential: float
    recalls: _containers.RepeatedCompositeFieldContainer[GradeRecall]
    ndcg_textgraphs: float
    oracle_ndcg_textgraphs: float
    def __init__(self, ndcg_linear: _Optional[float] = ..., ndcg_exponential: _Optional[float] = ..., oracle_ndcg_linear: _Optional[float] = ..., oracle_ndcg_exponential: _Optional[float] = ..., recalls: _Optional[_Iterable[_Union[GradeRecall, _Mapping]]] = ..., ndcg_textgraphs: _Optional[float] = ..., oracle_ndcg_textgraphs: _Optional[float] = ...) -> None: ...

class GradeRecall(_message.Message):
    __slots__ = ("grade", "pairs", "recall_at_10", "recall_at_25", "recall_at_50", "recall_at_100", "recall_at_200")
    GRADE_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    RECALL_AT_10_FIELD_NUMBER: _ClassVar[int]
    RECALL_AT_25_FIELD_NUMBER: _ClassVar[int]
    RECALL_AT_50_FIELD_NUMBER: _ClassVar[int]
    RECALL_AT_100_FIELD_NUMBER: _ClassVar[int]
    RECALL_AT_200_FIELD_NUMBER: _ClassVar[int]
    grade: float
    pairs: int
    recall_at_10: float
    recall_at_25: float
    recall_at_50: float
    recall_at_100: float
    recall_at_200: float
    def __init__(self, grade: _Optional[float] = ..., pairs: _Optional[int] = ..., recall_at_10: _Optional[float] = ..., recall_at_25: _Optional[float] = ..., recall_at_50: _Optional[float] = ..., recall_at_100: _Optional[float] = ..., recall_at_200: _Optional[float] = ...) -> None: ...

class EvaluationPart(_message.Message):
    __slots__ = ("kind", "strict", "paper", "queries", "pairs")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    PAPER_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    kind: EvaluationPartKind
    strict: RetrievalMetrics
    paper: RetrievalMetrics
    queries: int
    pairs: int
    def __init__(self, kind: _Optional[_Union[EvaluationPartKind, str]] = ..., strict: _Optional[_Union[RetrievalMetrics, _Mapping]] = ..., paper: _Optional[_Union[RetrievalMetrics, _Mapping]] = ..., queries: _Optional[int] = ..., pairs: _Optional[int] = ...) -> None: ...

class TreeMetrics(_message.Message):
    __slots__ = ("recall_at_25", "recall_at_25_micro", "all_correct_at_25", "trees", "leaves")
    RECALL_AT_25_FIELD_NUMBER: _ClassVar[int]
    RECALL_AT_25_MICRO_FIELD_NUMBER: _ClassVar[int]
    ALL_CORRECT_AT_25_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    recall_at_25: float
    recall_at_25_micro: float
    all_correct_at_25: float
    trees: int
    leaves: int
    def __init__(self, recall_at_25: _Optional[float] = ..., recall_at_25_micro: _Optional[float] = ..., all_correct_at_25: _Optional[float] = ..., trees: _Optional[int] = ..., leaves: _Optional[int] = ...) -> None: ...

class GoldRanks(_message.Message):
    __slots__ = ("strict", "paper")
    STRICT_FIELD_NUMBER: _ClassVar[int]
    PAPER_FIELD_NUMBER: _ClassVar[int]
    strict: _containers.RepeatedScalarFieldContainer[int]
    paper: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, strict: _Optional[_Iterable[int]] = ..., paper: _Optional[_Iterable[int]] = ...) -> None: ...

class RetrievalMetrics(_message.Message):
    __slots__ = ("map", "ndcg", "ndcg_at_10", "ndcg_at_50", "hit_at_10", "hit_at_20", "hit_at_50")
    MAP_FIELD_NUMBER: _ClassVar[int]
    NDCG_FIELD_NUMBER: _ClassVar[int]
    NDCG_AT_10_FIELD_NUMBER: _ClassVar[int]
    NDCG_AT_50_FIELD_NUMBER: _ClassVar[int]
    HIT_AT_10_FIELD_NUMBER: _ClassVar[int]
    HIT_AT_20_FIELD_NUMBER: _ClassVar[int]
    HIT_AT_50_FIELD_NUMBER: _ClassVar[int]
    map: float
    ndcg: float
    ndcg_at_10: float
    ndcg_at_50: float
    hit_at_10: float
    hit_at_20: float
    hit_at_50: float
    def __init__(self, map: _Optional[float] = ..., ndcg: _Optional[float] = ..., ndcg_at_10: _Optional[float] = ..., ndcg_at_50: _Optional[float] = ..., hit_at_10: _Optional[float] = ..., hit_at_20: _Optional[float] = ..., hit_at_50: _Optional[float] = ...) -> None: ...
