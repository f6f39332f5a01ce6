from aeenc.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lane(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LANE_UNSPECIFIED: _ClassVar[Lane]
    LANE_INTERACTIVE: _ClassVar[Lane]
    LANE_BULK: _ClassVar[Lane]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_QUERY: _ClassVar[Role]
    ROLE_PREMISE: _ClassVar[Role]
LANE_UNSPECIFIED: Lane
LANE_INTERACTIVE: Lane
LANE_BULK: Lane
ROLE_UNSPECIFIED: Role
ROLE_QUERY: Role
ROLE_PREMISE: Role

class EncodeRequest(_message.Message):
    __slots__ = ("texts", "role", "model", "truncate", "space_id", "lane", "precision", "routing_key")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    role: Role
    model: _types_pb2.ModelSelector
    truncate: _types_pb2.Truncate
    space_id: str
    lane: Lane
    precision: _types_pb2.Precision
    routing_key: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., role: _Optional[_Union[Role, str]] = ..., model: _Optional[_Union[_types_pb2.ModelSelector, _Mapping]] = ..., truncate: _Optional[_Union[_types_pb2.Truncate, str]] = ..., space_id: _Optional[str] = ..., lane: _Optional[_Union[Lane, str]] = ..., precision: _Optional[_Union[_types_pb2.Precision, str]] = ..., routing_key: _Optional[str] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("embeddings", "model_version", "space_id", "timings", "truncated", "precision", "tokens")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    embeddings: _types_pb2.Embeddings
    model_version: str
    space_id: str
    timings: _types_pb2.Timings
    truncated: int
    precision: _types_pb2.Precision
    tokens: int
    def __init__(self, embeddings: _Optional[_Union[_types_pb2.Embeddings, _Mapping]] = ..., model_version: _Optional[str] = ..., space_id: _Optional[str] = ..., timings: _Optional[_Union[_types_pb2.Timings, _Mapping]] = ..., truncated: _Optional[int] = ..., precision: _Optional[_Union[_types_pb2.Precision, str]] = ..., tokens: _Optional[int] = ...) -> None: ...

class EncodeStreamRequest(_message.Message):
    __slots__ = ("batch", "batch_seq")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_SEQ_FIELD_NUMBER: _ClassVar[int]
    batch: EncodeRequest
    batch_seq: int
    def __init__(self, batch: _Optional[_Union[EncodeRequest, _Mapping]] = ..., batch_seq: _Optional[int] = ...) -> None: ...

class EncodeStreamResponse(_message.Message):
    __slots__ = ("batch", "batch_seq")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_SEQ_FIELD_NUMBER: _ClassVar[int]
    batch: EncodeResponse
    batch_seq: int
    def __init__(self, batch: _Optional[_Union[EncodeResponse, _Mapping]] = ..., batch_seq: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("query", "premises", "model", "truncate", "first_of_ensemble", "precision")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    PREMISES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    FIRST_OF_ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    query: str
    premises: _containers.RepeatedScalarFieldContainer[str]
    model: _types_pb2.ModelSelector
    truncate: _types_pb2.Truncate
    first_of_ensemble: bool
    precision: _types_pb2.Precision
    def __init__(self, query: _Optional[str] = ..., premises: _Optional[_Iterable[str]] = ..., model: _Optional[_Union[_types_pb2.ModelSelector, _Mapping]] = ..., truncate: _Optional[_Union[_types_pb2.Truncate, str]] = ..., first_of_ensemble: bool = ..., precision: _Optional[_Union[_types_pb2.Precision, str]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores", "model_version", "timings", "truncated", "ensemble", "precision")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    model_version: str
    timings: _types_pb2.Timings
    truncated: int
    ensemble: _containers.RepeatedScalarFieldContainer[str]
    precision: _types_pb2.Precision
    def __init__(self, scores: _Optional[_Iterable[float]] = ..., model_version: _Optional[str] = ..., timings: _Optional[_Union[_types_pb2.Timings, _Mapping]] = ..., truncated: _Optional[int] = ..., ensemble: _Optional[_Iterable[str]] = ..., precision: _Optional[_Union[_types_pb2.Precision, str]] = ...) -> None: ...

class EncoderServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EncoderServiceGetInfoResponse(_message.Message):
    __slots__ = ("service", "default_space_id", "dim", "versions", "labels", "swaps", "runtime", "runtime_reason")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SWAPS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_REASON_FIELD_NUMBER: _ClassVar[int]
    service: _types_pb2.ServiceInfo
    default_space_id: str
    dim: int
    versions: _containers.RepeatedCompositeFieldContainer[LoadedVersion]
    labels: _containers.RepeatedCompositeFieldContainer[_types_pb2.Label]
    swaps: _containers.RepeatedCompositeFieldContainer[_types_pb2.Rollout]
    runtime: str
    runtime_reason: str
    def __init__(self, service: _Optional[_Union[_types_pb2.ServiceInfo, _Mapping]] = ..., default_space_id: _Optional[str] = ..., dim: _Optional[int] = ..., versions: _Optional[_Iterable[_Union[LoadedVersion, _Mapping]]] = ..., labels: _Optional[_Iterable[_Union[_types_pb2.Label, _Mapping]]] = ..., swaps: _Optional[_Iterable[_Union[_types_pb2.Rollout, _Mapping]]] = ..., runtime: _Optional[str] = ..., runtime_reason: _Optional[str] = ...) -> None: ...

class LoadedVersion(_message.Message):
    __slots__ = ("version", "space_id", "premise_encoder", "in_flight", "precisions")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PREMISE_ENCODER_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PRECISIONS_FIELD_NUMBER: _ClassVar[int]
    version: str
    space_id: str
    premise_encoder: bool
    in_flight: int
    precisions: _containers.RepeatedScalarFieldContainer[_types_pb2.Precision]
    def __init__(self, version: _Optional[str] = ..., space_id: _Optional[str] = ..., premise_encoder: bool = ..., in_flight: _Optional[int] = ..., precisions: _Optional[_Iterable[_Union[_types_pb2.Precision, str]]] = ...) -> None: ...
