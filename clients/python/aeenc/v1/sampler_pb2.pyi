from aeenc.v1 import types_pb2 as _types_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Collect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLLECT_UNSPECIFIED: _ClassVar[Collect]
    COLLECT_BOTH: _ClassVar[Collect]
    COLLECT_POSITIVES_ONLY: _ClassVar[Collect]
COLLECT_UNSPECIFIED: Collect
COLLECT_BOTH: Collect
COLLECT_POSITIVES_ONLY: Collect

class StartRunRequest(_message.Message):
    __slots__ = ("config", "hypotheses")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    config: RunConfig
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    def __init__(self, config: _Optional[_Union[RunConfig, _Mapping]] = ..., hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ...) -> None: ...

class RunConfig(_message.Message):
    __slots__ = ("corpus", "oracle", "idempotency_key", "k", "max_depth", "max_judgements", "collect", "model", "split", "conditioned", "max_negatives_per_query", "max_nodes_per_tree", "negative_filter", "live", "step")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    ORACLE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_JUDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    COLLECT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    CONDITIONED_FIELD_NUMBER: _ClassVar[int]
    MAX_NEGATIVES_PER_QUERY_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_PER_TREE_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_FILTER_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    oracle: str
    idempotency_key: str
    k: int
    max_depth: int
    max_judgements: int
    collect: Collect
    model: _types_pb2.ModelSelector
    split: str
    conditioned: bool
    max_negatives_per_query: int
    max_nodes_per_tree: int
    negative_filter: NegativeFilter
    live: bool
    step: int
    def __init__(self, corpus: _Optional[str] = ..., oracle: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., k: _Optional[int] = ..., max_depth: _Optional[int] = ..., max_judgements: _Optional[int] = ..., collect: _Optional[_Union[Collect, str]] = ..., model: _Optional[_Union[_types_pb2.ModelSelector, _Mapping]] = ..., split: _Optional[str] = ..., conditioned: bool = ..., max_negatives_per_query: _Optional[int] = ..., max_nodes_per_tree: _Optional[int] = ..., negative_filter: _Optional[_Union[NegativeFilter, _Mapping]] = ..., live: bool = ..., step: _Optional[int] = ...) -> None: ...

class NegativeFilter(_message.Message):
    __slots__ = ("min_rank", "max_rank", "absolute_margin", "relative_margin", "rewordings")
    MIN_RANK_FIELD_NUMBER: _ClassVar[int]
    MAX_RANK_FIELD_NUMBER: _ClassVar[int]
    ABSOLUTE_MARGIN_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_MARGIN_FIELD_NUMBER: _ClassVar[int]
    REWORDINGS_FIELD_NUMBER: _ClassVar[int]
    min_rank: int
    max_rank: int
    absolute_margin: float
    relative_margin: float
    rewordings: bool
    def __init__(self, min_rank: _Optional[int] = ..., max_rank: _Optional[int] = ..., absolute_margin: _Optional[float] = ..., relative_margin: _Optional[float] = ..., rewordings: bool = ...) -> None: ...

class Hypothesis(_message.Message):
    __slots__ = ("id", "text", "question", "answer", "before_id", "only_ids")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_ID_FIELD_NUMBER: _ClassVar[int]
    ONLY_IDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    question: str
    answer: str
    before_id: str
    only_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., question: _Optional[str] = ..., answer: _Optional[str] = ..., before_id: _Optional[str] = ..., only_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class StartRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("id", "config", "state", "error", "model_version", "generation", "progress", "created_at", "ended_at", "current_version")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    CURRENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    id: str
    config: RunConfig
    state: _types_pb2.WorkState
    error: str
    model_version: str
    generation: str
    progress: RunProgress
    created_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    current_version: str
    def __init__(self, id: _Optional[str] = ..., config: _Optional[_Union[RunConfig, _Mapping]] = ..., state: _Optional[_Union[_types_pb2.WorkState, str]] = ..., error: _Optional[str] = ..., model_version: _Optional[str] = ..., generation: _Optional[str] = ..., progress: _Optional[_Union[RunProgress, _Mapping]] = ..., created_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., current_version: _Optional[str] = ...) -> None: ...

class RunProgress(_message.Message):
    __slots__ = ("trees", "trees_done", "nodes_judged", "nodes_pending", "positives", "negatives", "skipped", "judgements", "nodes_failed", "disputed")
    TREES_FIELD_NUMBER: _ClassVar[int]
    TREES_DONE_FIELD_NUMBER: _ClassVar[int]
    NODES_JUDGED_FIELD_NUMBER: _ClassVar[int]
    NODES_PENDING_FIELD_NUMBER: _ClassVar[int]
    POSITIVES_FIELD_NUMBER: _ClassVar[int]
    NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    JUDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FAILED_FIELD_NUMBER: _ClassVar[int]
    DISPUTED_FIELD_NUMBER: _ClassVar[int]
    trees: int
    trees_done: int
    nodes_judged: int
    nodes_pending: int
    positives: int
    negatives: int
    skipped: int
    judgements: int
    nodes_failed: int
    disputed: int
    def __init__(self, trees: _Optional[int] = ..., trees_done: _Optional[int] = ..., nodes_judged: _Optional[int] = ..., nodes_pending: _Optional[int] = ..., positives: _Optional[int] = ..., negatives: _Optional[int] = ..., skipped: _Optional[int] = ..., judgements: _Optional[int] = ..., nodes_failed: _Optional[int] = ..., disputed: _Optional[int] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "from_seq")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    from_seq: int
    def __init__(self, run_id: _Optional[str] = ..., from_seq: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("seq", "at", "run")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    seq: int
    at: _timestamp_pb2.Timestamp
    run: Run
    def __init__(self, seq: _Optional[int] = ..., at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id", "request_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    request_id: str
    def __init__(self, run_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ResumeRunRequest(_message.Message):
    __slots__ = ("run_id", "request_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    request_id: str
    def __init__(self, run_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ResumeRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class DeleteRunRequest(_message.Message):
    __slots__ = ("run_id", "request_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    request_id: str
    def __init__(self, run_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SamplerAdminServiceCollectGarbageRequest(_message.Message):
    __slots__ = ("dry_run", "request_id")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    request_id: str
    def __init__(self, dry_run: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class SamplerAdminServiceCollectGarbageResponse(_message.Message):
    __slots__ = ("garbage",)
    GARBAGE_FIELD_NUMBER: _ClassVar[int]
    garbage: _containers.RepeatedCompositeFieldContainer[_types_pb2.Garbage]
    def __init__(self, garbage: _Optional[_Iterable[_Union[_types_pb2.Garbage, _Mapping]]] = ...) -> None: ...

class ListPairsRequest(_message.Message):
    __slots__ = ("run_id", "page_size", "page_token", "sign")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SIGN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    page_size: int
    page_token: str
    sign: _types_pb2.PairSign
    def __init__(self, run_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., sign: _Optional[_Union[_types_pb2.PairSign, str]] = ...) -> None: ...

class ListPairsResponse(_message.Message):
    __slots__ = ("pairs", "next_page_token")
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[_types_pb2.Pair]
    next_page_token: str
    def __init__(self, pairs: _Optional[_Iterable[_Union[_types_pb2.Pair, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ImportPairsRequest(_message.Message):
    __slots__ = ("corpus", "pairs", "run_id", "request_id")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    pairs: _containers.RepeatedCompositeFieldContainer[_types_pb2.Pair]
    run_id: str
    request_id: str
    def __init__(self, corpus: _Optional[str] = ..., pairs: _Optional[_Iterable[_Union[_types_pb2.Pair, _Mapping]]] = ..., run_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ImportPairsResponse(_message.Message):
    __slots__ = ("run_id", "added")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    added: int
    def __init__(self, run_id: _Optional[str] = ..., added: _Optional[int] = ...) -> None: ...

class ExportTreesRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ExportTreesResponse(_message.Message):
    __slots__ = ("hypothesis_id", "record_json")
    HYPOTHESIS_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_JSON_FIELD_NUMBER: _ClassVar[int]
    hypothesis_id: str
    record_json: str
    def __init__(self, hypothesis_id: _Optional[str] = ..., record_json: _Optional[str] = ...) -> None: ...

class SamplerServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SamplerServiceGetInfoResponse(_message.Message):
    __slots__ = ("service", "oracles", "active_runs", "waiting_runs")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ORACLES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_RUNS_FIELD_NUMBER: _ClassVar[int]
    WAITING_RUNS_FIELD_NUMBER: _ClassVar[int]
    service: _types_pb2.ServiceInfo
    oracles: _containers.RepeatedScalarFieldContainer[str]
    active_runs: _containers.RepeatedScalarFieldContainer[str]
    waiting_runs: _containers.RepeatedCompositeFieldContainer[WaitingRun]
    def __init__(self, service: _Optional[_Union[_types_pb2.ServiceInfo, _Mapping]] = ..., oracles: _Optional[_Iterable[str]] = ..., active_runs: _Optional[_Iterable[str]] = ..., waiting_runs: _Optional[_Iterable[_Union[WaitingRun, _Mapping]]] = ...) -> None: ...

class WaitingRun(_message.Message):
    __slots__ = ("run_id", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    reason: str
    def __init__(self, run_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
