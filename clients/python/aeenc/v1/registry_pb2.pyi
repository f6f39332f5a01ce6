from aeenc.v1 import types_pb2 as _types_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_BETTER: _ClassVar[Outcome]
    OUTCOME_NO_DIFFERENCE: _ClassVar[Outcome]
    OUTCOME_WORSE: _ClassVar[Outcome]
    OUTCOME_TOO_FEW: _ClassVar[Outcome]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_BETTER: Outcome
OUTCOME_NO_DIFFERENCE: Outcome
OUTCOME_WORSE: Outcome
OUTCOME_TOO_FEW: Outcome

class PublishRequest(_message.Message):
    __slots__ = ("versions", "label", "expected_revision", "force", "wait", "request_id", "share", "only_better", "precision")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ONLY_BETTER_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[str]
    label: str
    expected_revision: int
    force: bool
    wait: _duration_pb2.Duration
    request_id: str
    share: float
    only_better: bool
    precision: _types_pb2.Precision
    def __init__(self, versions: _Optional[_Iterable[str]] = ..., label: _Optional[str] = ..., expected_revision: _Optional[int] = ..., force: bool = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., request_id: _Optional[str] = ..., share: _Optional[float] = ..., only_better: bool = ..., precision: _Optional[_Union[_types_pb2.Precision, str]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("label", "rollouts", "complete", "generation", "comparisons", "not_compared")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMPARISONS_FIELD_NUMBER: _ClassVar[int]
    NOT_COMPARED_FIELD_NUMBER: _ClassVar[int]
    label: _types_pb2.Label
    rollouts: _containers.RepeatedCompositeFieldContainer[_types_pb2.Rollout]
    complete: bool
    generation: str
    comparisons: _containers.RepeatedCompositeFieldContainer[GateComparison]
    not_compared: str
    def __init__(self, label: _Optional[_Union[_types_pb2.Label, _Mapping]] = ..., rollouts: _Optional[_Iterable[_Union[_types_pb2.Rollout, _Mapping]]] = ..., complete: bool = ..., generation: _Optional[str] = ..., comparisons: _Optional[_Iterable[_Union[GateComparison, _Mapping]]] = ..., not_compared: _Optional[str] = ...) -> None: ...

class GateComparison(_message.Message):
    __slots__ = ("version", "queries", "candidate_map", "version_map", "p_value", "p_better", "outcome")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_MAP_FIELD_NUMBER: _ClassVar[int]
    VERSION_MAP_FIELD_NUMBER: _ClassVar[int]
    P_VALUE_FIELD_NUMBER: _ClassVar[int]
    P_BETTER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    version: str
    queries: int
    candidate_map: float
    version_map: float
    p_value: float
    p_better: float
    outcome: Outcome
    def __init__(self, version: _Optional[str] = ..., queries: _Optional[int] = ..., candidate_map: _Optional[float] = ..., version_map: _Optional[float] = ..., p_value: _Optional[float] = ..., p_better: _Optional[float] = ..., outcome: _Optional[_Union[Outcome, str]] = ...) -> None: ...

class SetLabelRequest(_message.Message):
    __slots__ = ("label", "versions", "expected_revision", "request_id", "share", "precision")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    label: str
    versions: _containers.RepeatedScalarFieldContainer[str]
    expected_revision: int
    request_id: str
    share: float
    precision: _types_pb2.Precision
    def __init__(self, label: _Optional[str] = ..., versions: _Optional[_Iterable[str]] = ..., expected_revision: _Optional[int] = ..., request_id: _Optional[str] = ..., share: _Optional[float] = ..., precision: _Optional[_Union[_types_pb2.Precision, str]] = ...) -> None: ...

class SetLabelResponse(_message.Message):
    __slots__ = ("label",)
    LABEL_FIELD_NUMBER: _ClassVar[int]
    label: _types_pb2.Label
    def __init__(self, label: _Optional[_Union[_types_pb2.Label, _Mapping]] = ...) -> None: ...

class DeleteLabelRequest(_message.Message):
    __slots__ = ("label", "space_id", "request_id")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    label: str
    space_id: str
    request_id: str
    def __init__(self, label: _Optional[str] = ..., space_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class DeleteLabelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("label", "expected_revision", "space_id", "request_id", "wait", "corpus")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    label: str
    expected_revision: int
    space_id: str
    request_id: str
    wait: _duration_pb2.Duration
    corpus: str
    def __init__(self, label: _Optional[str] = ..., expected_revision: _Optional[int] = ..., space_id: _Optional[str] = ..., request_id: _Optional[str] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., corpus: _Optional[str] = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ("label", "rollouts", "complete", "generation")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    label: _types_pb2.Label
    rollouts: _containers.RepeatedCompositeFieldContainer[_types_pb2.Rollout]
    complete: bool
    generation: str
    def __init__(self, label: _Optional[_Union[_types_pb2.Label, _Mapping]] = ..., rollouts: _Optional[_Iterable[_Union[_types_pb2.Rollout, _Mapping]]] = ..., complete: bool = ..., generation: _Optional[str] = ...) -> None: ...

class ListLabelsRequest(_message.Message):
    __slots__ = ("space_id", "page_size", "page_token")
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    space_id: str
    page_size: int
    page_token: str
    def __init__(self, space_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListLabelsResponse(_message.Message):
    __slots__ = ("labels", "next_page_token")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[_types_pb2.Label]
    next_page_token: str
    def __init__(self, labels: _Optional[_Iterable[_Union[_types_pb2.Label, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListRolloutsRequest(_message.Message):
    __slots__ = ("label", "space_id")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SPACE_ID_FIELD_NUMBER: _ClassVar[int]
    label: str
    space_id: str
    def __init__(self, label: _Optional[str] = ..., space_id: _Optional[str] = ...) -> None: ...

class ListRolloutsResponse(_message.Message):
    __slots__ = ("label", "rollouts")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    label: _types_pb2.Label
    rollouts: _containers.RepeatedCompositeFieldContainer[_types_pb2.Rollout]
    def __init__(self, label: _Optional[_Union[_types_pb2.Label, _Mapping]] = ..., rollouts: _Optional[_Iterable[_Union[_types_pb2.Rollout, _Mapping]]] = ...) -> None: ...
