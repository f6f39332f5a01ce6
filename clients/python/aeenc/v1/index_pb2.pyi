from aeenc.v1 import types_pb2 as _types_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RetrieveMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETRIEVE_MODE_UNSPECIFIED: _ClassVar[RetrieveMode]
    RETRIEVE_MODE_DENSE: _ClassVar[RetrieveMode]
    RETRIEVE_MODE_LEXICAL: _ClassVar[RetrieveMode]
    RETRIEVE_MODE_HYBRID: _ClassVar[RetrieveMode]
    RETRIEVE_MODE_ITERATIVE_LEXICAL: _ClassVar[RetrieveMode]

class FusionMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FUSION_METHOD_UNSPECIFIED: _ClassVar[FusionMethod]
    FUSION_METHOD_MIN_MAX: _ClassVar[FusionMethod]
    FUSION_METHOD_RECIPROCAL_RANK: _ClassVar[FusionMethod]

class Folding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FOLDING_UNSPECIFIED: _ClassVar[Folding]
    FOLDING_EXACT: _ClassVar[Folding]
    FOLDING_NORMALIZED: _ClassVar[Folding]

class BuildStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUILD_STAGE_UNSPECIFIED: _ClassVar[BuildStage]
    BUILD_STAGE_RECEIVING: _ClassVar[BuildStage]
    BUILD_STAGE_INDEXING: _ClassVar[BuildStage]

class AckLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACK_LEVEL_UNSPECIFIED: _ClassVar[AckLevel]
    ACK_LEVEL_RECEIVED: _ClassVar[AckLevel]
    ACK_LEVEL_DURABLE: _ClassVar[AckLevel]
    ACK_LEVEL_SEARCHABLE: _ClassVar[AckLevel]
RETRIEVE_MODE_UNSPECIFIED: RetrieveMode
RETRIEVE_MODE_DENSE: RetrieveMode
RETRIEVE_MODE_LEXICAL: RetrieveMode
RETRIEVE_MODE_HYBRID: RetrieveMode
RETRIEVE_MODE_ITERATIVE_LEXICAL: RetrieveMode
FUSION_METHOD_UNSPECIFIED: FusionMethod
FUSION_METHOD_MIN_MAX: FusionMethod
FUSION_METHOD_RECIPROCAL_RANK: FusionMethod
FOLDING_UNSPECIFIED: Folding
FOLDING_EXACT: Folding
FOLDING_NORMALIZED: Folding
BUILD_STAGE_UNSPECIFIED: BuildStage
BUILD_STAGE_RECEIVING: BuildStage
BUILD_STAGE_INDEXING: BuildStage
ACK_LEVEL_UNSPECIFIED: AckLevel
ACK_LEVEL_RECEIVED: AckLevel
ACK_LEVEL_DURABLE: AckLevel
ACK_LEVEL_SEARCHABLE: AckLevel

class SearchRequest(_message.Message):
    __slots__ = ("corpus", "vectors", "space_id", "k", "exclude_ids", "filter", "generation", "params", "timings")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    vectors: _types_pb2.Embeddings
    space_id: str
    k: int
    exclude_ids: _containers.RepeatedScalarFieldContainer[str]
    filter: PremiseFilter
    generation: str
    params: SearchParams
    timings: bool
    def __init__(self, corpus: _Optional[str] = ..., vectors: _Optional[_Union[_types_pb2.Embeddings, _Mapping]] = ..., space_id: _Optional[str] = ..., k: _Optional[int] = ..., exclude_ids: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[PremiseFilter, _Mapping]] = ..., generation: _Optional[str] = ..., params: _Optional[_Union[SearchParams, _Mapping]] = ..., timings: bool = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("results", "generation", "space_id", "exact", "timings", "unknown_splits", "unknown_tags")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_SPLITS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_TAGS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[Hits]
    generation: str
    space_id: str
    exact: bool
    timings: _types_pb2.Timings
    unknown_splits: _containers.RepeatedScalarFieldContainer[str]
    unknown_tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, results: _Optional[_Iterable[_Union[Hits, _Mapping]]] = ..., generation: _Optional[str] = ..., space_id: _Optional[str] = ..., exact: bool = ..., timings: _Optional[_Union[_types_pb2.Timings, _Mapping]] = ..., unknown_splits: _Optional[_Iterable[str]] = ..., unknown_tags: _Optional[_Iterable[str]] = ...) -> None: ...

class Hits(_message.Message):
    __slots__ = ("premise_ids", "scores")
    PREMISE_IDS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    premise_ids: _containers.RepeatedScalarFieldContainer[str]
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, premise_ids: _Optional[_Iterable[str]] = ..., scores: _Optional[_Iterable[float]] = ...) -> None: ...

class PremiseFilter(_message.Message):
    __slots__ = ("any_split", "only_ids", "before_id", "any_clause")
    ANY_SPLIT_FIELD_NUMBER: _ClassVar[int]
    ONLY_IDS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_ID_FIELD_NUMBER: _ClassVar[int]
    ANY_CLAUSE_FIELD_NUMBER: _ClassVar[int]
    any_split: _containers.RepeatedScalarFieldContainer[str]
    only_ids: _containers.RepeatedScalarFieldContainer[str]
    before_id: str
    any_clause: _containers.RepeatedCompositeFieldContainer[TagClause]
    def __init__(self, any_split: _Optional[_Iterable[str]] = ..., only_ids: _Optional[_Iterable[str]] = ..., before_id: _Optional[str] = ..., any_clause: _Optional[_Iterable[_Union[TagClause, _Mapping]]] = ...) -> None: ...

class TagClause(_message.Message):
    __slots__ = ("all_of", "none_of")
    ALL_OF_FIELD_NUMBER: _ClassVar[int]
    NONE_OF_FIELD_NUMBER: _ClassVar[int]
    all_of: _containers.RepeatedScalarFieldContainer[str]
    none_of: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, all_of: _Optional[_Iterable[str]] = ..., none_of: _Optional[_Iterable[str]] = ...) -> None: ...

class SearchParams(_message.Message):
    __slots__ = ("ef_search", "nprobe", "exact")
    EF_SEARCH_FIELD_NUMBER: _ClassVar[int]
    NPROBE_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    ef_search: int
    nprobe: int
    exact: bool
    def __init__(self, ef_search: _Optional[int] = ..., nprobe: _Optional[int] = ..., exact: bool = ...) -> None: ...

class RetrieveRequest(_message.Message):
    __slots__ = ("corpus", "texts", "k", "options", "model", "accepted", "drop_self", "exclude_ids", "filter", "generation", "truncate", "precision", "routing_key", "params")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DROP_SELF_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    k: int
    options: RetrievalOptions
    model: _types_pb2.ModelSelector
    accepted: _containers.RepeatedCompositeFieldContainer[_types_pb2.PremiseSet]
    drop_self: bool
    exclude_ids: _containers.RepeatedScalarFieldContainer[str]
    filter: PremiseFilter
    generation: str
    truncate: _types_pb2.Truncate
    precision: _types_pb2.Precision
    routing_key: str
    params: SearchParams
    def __init__(self, corpus: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., k: _Optional[int] = ..., options: _Optional[_Union[RetrievalOptions, _Mapping]] = ..., model: _Optional[_Union[_types_pb2.ModelSelector, _Mapping]] = ..., accepted: _Optional[_Iterable[_Union[_types_pb2.PremiseSet, _Mapping]]] = ..., drop_self: bool = ..., exclude_ids: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[PremiseFilter, _Mapping]] = ..., generation: _Optional[str] = ..., truncate: _Optional[_Union[_types_pb2.Truncate, str]] = ..., precision: _Optional[_Union[_types_pb2.Precision, str]] = ..., routing_key: _Optional[str] = ..., params: _Optional[_Union[SearchParams, _Mapping]] = ...) -> None: ...

class RetrievalOptions(_message.Message):
    __slots__ = ("mode", "fusion", "prior", "rerank", "negative_feedback", "rerank_weight", "rerank_versions")
    MODE_FIELD_NUMBER: _ClassVar[int]
    FUSION_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    RERANK_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    RERANK_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    RERANK_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    mode: RetrieveMode
    fusion: Fusion
    prior: float
    rerank: int
    negative_feedback: float
    rerank_weight: float
    rerank_versions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, mode: _Optional[_Union[RetrieveMode, str]] = ..., fusion: _Optional[_Union[Fusion, _Mapping]] = ..., prior: _Optional[float] = ..., rerank: _Optional[int] = ..., negative_feedback: _Optional[float] = ..., rerank_weight: _Optional[float] = ..., rerank_versions: _Optional[_Iterable[str]] = ...) -> None: ...

class Fusion(_message.Message):
    __slots__ = ("method", "lexical_weight", "features")
    class FeaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    METHOD_FIELD_NUMBER: _ClassVar[int]
    LEXICAL_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    method: FusionMethod
    lexical_weight: float
    features: _containers.ScalarMap[str, float]
    def __init__(self, method: _Optional[_Union[FusionMethod, str]] = ..., lexical_weight: _Optional[float] = ..., features: _Optional[_Mapping[str, float]] = ...) -> None: ...

class RetrieveResponse(_message.Message):
    __slots__ = ("results", "model_version", "space_id", "generation", "exact", "timings", "rerank_versions", "unknown_splits", "unknown_tags", "precision")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    RERANK_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_SPLITS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_TAGS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RetrievedPremises]
    model_version: str
    space_id: str
    generation: str
    exact: bool
    timings: _types_pb2.Timings
    rerank_versions: _containers.RepeatedScalarFieldContainer[str]
    unknown_splits: _containers.RepeatedScalarFieldContainer[str]
    unknown_tags: _containers.RepeatedScalarFieldContainer[str]
    precision: _types_pb2.Precision
    def __init__(self, results: _Optional[_Iterable[_Union[RetrievedPremises, _Mapping]]] = ..., model_version: _Optional[str] = ..., space_id: _Optional[str] = ..., generation: _Optional[str] = ..., exact: bool = ..., timings: _Optional[_Union[_types_pb2.Timings, _Mapping]] = ..., rerank_versions: _Optional[_Iterable[str]] = ..., unknown_splits: _Optional[_Iterable[str]] = ..., unknown_tags: _Optional[_Iterable[str]] = ..., precision: _Optional[_Union[_types_pb2.Precision, str]] = ...) -> None: ...

class RetrievedPremises(_message.Message):
    __slots__ = ("premises",)
    PREMISES_FIELD_NUMBER: _ClassVar[int]
    premises: _containers.RepeatedCompositeFieldContainer[_types_pb2.RankedPremise]
    def __init__(self, premises: _Optional[_Iterable[_Union[_types_pb2.RankedPremise, _Mapping]]] = ...) -> None: ...

class GetPremisesRequest(_message.Message):
    __slots__ = ("corpus", "ids", "generation")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    generation: str
    def __init__(self, corpus: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., generation: _Optional[str] = ...) -> None: ...

class GetPremisesResponse(_message.Message):
    __slots__ = ("premises", "generation")
    PREMISES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    premises: _containers.RepeatedCompositeFieldContainer[_types_pb2.Premise]
    generation: str
    def __init__(self, premises: _Optional[_Iterable[_Union[_types_pb2.Premise, _Mapping]]] = ..., generation: _Optional[str] = ...) -> None: ...

class ListPremisesRequest(_message.Message):
    __slots__ = ("corpus", "page_size", "page_token", "generation")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    page_size: int
    page_token: str
    generation: str
    def __init__(self, corpus: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., generation: _Optional[str] = ...) -> None: ...

class ListPremisesResponse(_message.Message):
    __slots__ = ("premises", "next_page_token", "generation", "total_size")
    PREMISES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    premises: _containers.RepeatedCompositeFieldContainer[_types_pb2.Premise]
    next_page_token: str
    generation: str
    total_size: int
    def __init__(self, premises: _Optional[_Iterable[_Union[_types_pb2.Premise, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., generation: _Optional[str] = ..., total_size: _Optional[int] = ...) -> None: ...

class ListCorporaRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListCorporaResponse(_message.Message):
    __slots__ = ("corpora", "next_page_token")
    CORPORA_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    corpora: _containers.RepeatedCompositeFieldContainer[CorpusInfo]
    next_page_token: str
    def __init__(self, corpora: _Optional[_Iterable[_Union[CorpusInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class IndexServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IndexServiceGetInfoResponse(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: _types_pb2.ServiceInfo
    def __init__(self, service: _Optional[_Union[_types_pb2.ServiceInfo, _Mapping]] = ...) -> None: ...

class CorpusInfo(_message.Message):
    __slots__ = ("corpus", "active", "replicas")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    active: Generation
    replicas: _containers.RepeatedCompositeFieldContainer[IndexReplica]
    def __init__(self, corpus: _Optional[str] = ..., active: _Optional[_Union[Generation, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[IndexReplica, _Mapping]]] = ...) -> None: ...

class BuildGenerationRequest(_message.Message):
    __slots__ = ("header", "premises")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PREMISES_FIELD_NUMBER: _ClassVar[int]
    header: BuildHeader
    premises: _containers.RepeatedCompositeFieldContainer[_types_pb2.Premise]
    def __init__(self, header: _Optional[_Union[BuildHeader, _Mapping]] = ..., premises: _Optional[_Iterable[_Union[_types_pb2.Premise, _Mapping]]] = ...) -> None: ...

class BuildHeader(_message.Message):
    __slots__ = ("corpus", "request_id", "base_generation", "delete_ids", "activate", "resume_from", "folding", "space_id", "truncate")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    DELETE_IDS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    FOLDING_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    request_id: str
    base_generation: str
    delete_ids: _containers.RepeatedScalarFieldContainer[str]
    activate: bool
    resume_from: int
    folding: Folding
    space_id: str
    truncate: _types_pb2.Truncate
    def __init__(self, corpus: _Optional[str] = ..., request_id: _Optional[str] = ..., base_generation: _Optional[str] = ..., delete_ids: _Optional[_Iterable[str]] = ..., activate: bool = ..., resume_from: _Optional[int] = ..., folding: _Optional[_Union[Folding, str]] = ..., space_id: _Optional[str] = ..., truncate: _Optional[_Union[_types_pb2.Truncate, str]] = ...) -> None: ...

class PutExplanationsRequest(_message.Message):
    __slots__ = ("header", "explanations")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    EXPLANATIONS_FIELD_NUMBER: _ClassVar[int]
    header: ExplanationsHeader
    explanations: _containers.RepeatedCompositeFieldContainer[Explanation]
    def __init__(self, header: _Optional[_Union[ExplanationsHeader, _Mapping]] = ..., explanations: _Optional[_Iterable[_Union[Explanation, _Mapping]]] = ...) -> None: ...

class ExplanationsHeader(_message.Message):
    __slots__ = ("corpus", "replace")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    replace: bool
    def __init__(self, corpus: _Optional[str] = ..., replace: bool = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("text", "premise_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PREMISE_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    premise_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, text: _Optional[str] = ..., premise_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PutExplanationsResponse(_message.Message):
    __slots__ = ("total_size", "replicas")
    TOTAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    total_size: int
    replicas: _containers.RepeatedCompositeFieldContainer[IndexReplica]
    def __init__(self, total_size: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[IndexReplica, _Mapping]]] = ...) -> None: ...

class BuildGenerationResponse(_message.Message):
    __slots__ = ("received", "encoded", "ack_level", "generation", "durable", "stage")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    ACK_LEVEL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    received: int
    encoded: int
    ack_level: AckLevel
    generation: Generation
    durable: int
    stage: BuildStage
    def __init__(self, received: _Optional[int] = ..., encoded: _Optional[int] = ..., ack_level: _Optional[_Union[AckLevel, str]] = ..., generation: _Optional[_Union[Generation, _Mapping]] = ..., durable: _Optional[int] = ..., stage: _Optional[_Union[BuildStage, str]] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("id", "corpus", "space_id", "premise_version", "premises", "dim", "engine", "manifest_sha256", "created_at", "active", "size_bytes", "notes", "held_by", "recall_at_10")
    ID_FIELD_NUMBER: _ClassVar[int]
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PREMISE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PREMISES_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    RECALL_AT_10_FIELD_NUMBER: _ClassVar[int]
    id: str
    corpus: str
    space_id: str
    premise_version: str
    premises: int
    dim: int
    engine: str
    manifest_sha256: str
    created_at: _timestamp_pb2.Timestamp
    active: bool
    size_bytes: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    held_by: _containers.RepeatedScalarFieldContainer[str]
    recall_at_10: float
    def __init__(self, id: _Optional[str] = ..., corpus: _Optional[str] = ..., space_id: _Optional[str] = ..., premise_version: _Optional[str] = ..., premises: _Optional[int] = ..., dim: _Optional[int] = ..., engine: _Optional[str] = ..., manifest_sha256: _Optional[str] = ..., created_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., active: bool = ..., size_bytes: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ..., held_by: _Optional[_Iterable[str]] = ..., recall_at_10: _Optional[float] = ...) -> None: ...

class ActivateGenerationRequest(_message.Message):
    __slots__ = ("corpus", "generation", "expected_generation", "request_id")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    generation: str
    expected_generation: str
    request_id: str
    def __init__(self, corpus: _Optional[str] = ..., generation: _Optional[str] = ..., expected_generation: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ActivateGenerationResponse(_message.Message):
    __slots__ = ("active", "previous_generation", "replicas")
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    active: Generation
    previous_generation: str
    replicas: _containers.RepeatedCompositeFieldContainer[IndexReplica]
    def __init__(self, active: _Optional[_Union[Generation, _Mapping]] = ..., previous_generation: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[IndexReplica, _Mapping]]] = ...) -> None: ...

class IndexReplica(_message.Message):
    __slots__ = ("instance", "generation", "space_id", "behind", "reason")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    instance: str
    generation: str
    space_id: str
    behind: bool
    reason: str
    def __init__(self, instance: _Optional[str] = ..., generation: _Optional[str] = ..., space_id: _Optional[str] = ..., behind: bool = ..., reason: _Optional[str] = ...) -> None: ...

class ListGenerationsRequest(_message.Message):
    __slots__ = ("corpus", "page_size", "page_token")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    page_size: int
    page_token: str
    def __init__(self, corpus: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListGenerationsResponse(_message.Message):
    __slots__ = ("generations", "next_page_token")
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    generations: _containers.RepeatedCompositeFieldContainer[Generation]
    next_page_token: str
    def __init__(self, generations: _Optional[_Iterable[_Union[Generation, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class VerifyGenerationRequest(_message.Message):
    __slots__ = ("corpus", "generation")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    generation: str
    def __init__(self, corpus: _Optional[str] = ..., generation: _Optional[str] = ...) -> None: ...

class VerifyGenerationResponse(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: Generation
    def __init__(self, generation: _Optional[_Union[Generation, _Mapping]] = ...) -> None: ...

class DeleteGenerationRequest(_message.Message):
    __slots__ = ("corpus", "generation", "request_id", "despite")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DESPITE_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    generation: str
    request_id: str
    despite: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, corpus: _Optional[str] = ..., generation: _Optional[str] = ..., request_id: _Optional[str] = ..., despite: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteGenerationResponse(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[IndexReplica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[IndexReplica, _Mapping]]] = ...) -> None: ...

class HoldGenerationRequest(_message.Message):
    __slots__ = ("corpus", "generation", "holder")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    generation: str
    holder: str
    def __init__(self, corpus: _Optional[str] = ..., generation: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class HoldGenerationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseGenerationRequest(_message.Message):
    __slots__ = ("corpus", "generation", "holder")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    generation: str
    holder: str
    def __init__(self, corpus: _Optional[str] = ..., generation: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class ReleaseGenerationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
