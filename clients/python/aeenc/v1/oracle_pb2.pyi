from aeenc.v1 import types_pb2 as _types_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Remark(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REMARK_UNSPECIFIED: _ClassVar[Remark]
    REMARK_IRRELEVANT: _ClassVar[Remark]
    REMARK_BAD_FACT: _ClassVar[Remark]

class NodeVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_VERDICT_UNSPECIFIED: _ClassVar[NodeVerdict]
    NODE_VERDICT_COMPLETE: _ClassVar[NodeVerdict]
    NODE_VERDICT_PREMISE_MISSING: _ClassVar[NodeVerdict]
    NODE_VERDICT_NOT_EXPLAINABLE: _ClassVar[NodeVerdict]

class Judgement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JUDGEMENT_UNSPECIFIED: _ClassVar[Judgement]
    JUDGEMENT_EXPLAINS: _ClassVar[Judgement]
    JUDGEMENT_DOES_NOT_EXPLAIN: _ClassVar[Judgement]
    JUDGEMENT_ABSTAIN: _ClassVar[Judgement]
    JUDGEMENT_UNSEEN: _ClassVar[Judgement]
REMARK_UNSPECIFIED: Remark
REMARK_IRRELEVANT: Remark
REMARK_BAD_FACT: Remark
NODE_VERDICT_UNSPECIFIED: NodeVerdict
NODE_VERDICT_COMPLETE: NodeVerdict
NODE_VERDICT_PREMISE_MISSING: NodeVerdict
NODE_VERDICT_NOT_EXPLAINABLE: NodeVerdict
JUDGEMENT_UNSPECIFIED: Judgement
JUDGEMENT_EXPLAINS: Judgement
JUDGEMENT_DOES_NOT_EXPLAIN: Judgement
JUDGEMENT_ABSTAIN: Judgement
JUDGEMENT_UNSEEN: Judgement

class JudgeRequest(_message.Message):
    __slots__ = ("run_id", "tasks")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    tasks: _containers.RepeatedCompositeFieldContainer[OracleTask]
    def __init__(self, run_id: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[OracleTask, _Mapping]]] = ...) -> None: ...

class OracleTask(_message.Message):
    __slots__ = ("task_id", "query", "path", "accepted", "candidates", "model_version")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    query: str
    path: _containers.RepeatedScalarFieldContainer[str]
    accepted: _containers.RepeatedCompositeFieldContainer[_types_pb2.RankedPremise]
    candidates: _containers.RepeatedCompositeFieldContainer[_types_pb2.RankedPremise]
    model_version: str
    def __init__(self, task_id: _Optional[str] = ..., query: _Optional[str] = ..., path: _Optional[_Iterable[str]] = ..., accepted: _Optional[_Iterable[_Union[_types_pb2.RankedPremise, _Mapping]]] = ..., candidates: _Optional[_Iterable[_Union[_types_pb2.RankedPremise, _Mapping]]] = ..., model_version: _Optional[str] = ...) -> None: ...

class JudgeResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("task_id", "verdicts", "annotator", "note", "node_verdict", "additions", "intermediates", "alternatives", "inference", "written", "answer_id", "late", "at")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    NODE_VERDICT_FIELD_NUMBER: _ClassVar[int]
    ADDITIONS_FIELD_NUMBER: _ClassVar[int]
    INTERMEDIATES_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_ID_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    annotator: str
    note: str
    node_verdict: NodeVerdict
    additions: _containers.RepeatedCompositeFieldContainer[Verdict]
    intermediates: _containers.RepeatedScalarFieldContainer[str]
    alternatives: _containers.RepeatedCompositeFieldContainer[_types_pb2.PremiseSet]
    inference: str
    written: _containers.RepeatedScalarFieldContainer[str]
    answer_id: str
    late: bool
    at: _timestamp_pb2.Timestamp
    def __init__(self, task_id: _Optional[str] = ..., verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., annotator: _Optional[str] = ..., note: _Optional[str] = ..., node_verdict: _Optional[_Union[NodeVerdict, str]] = ..., additions: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., intermediates: _Optional[_Iterable[str]] = ..., alternatives: _Optional[_Iterable[_Union[_types_pb2.PremiseSet, _Mapping]]] = ..., inference: _Optional[str] = ..., written: _Optional[_Iterable[str]] = ..., answer_id: _Optional[str] = ..., late: bool = ..., at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("premise_id", "judgement", "leaf", "grade", "annotator", "remark", "text", "in_sight_ms")
    PREMISE_ID_FIELD_NUMBER: _ClassVar[int]
    JUDGEMENT_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    GRADE_FIELD_NUMBER: _ClassVar[int]
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    REMARK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IN_SIGHT_MS_FIELD_NUMBER: _ClassVar[int]
    premise_id: str
    judgement: Judgement
    leaf: bool
    grade: float
    annotator: str
    remark: Remark
    text: str
    in_sight_ms: int
    def __init__(self, premise_id: _Optional[str] = ..., judgement: _Optional[_Union[Judgement, str]] = ..., leaf: bool = ..., grade: _Optional[float] = ..., annotator: _Optional[str] = ..., remark: _Optional[_Union[Remark, str]] = ..., text: _Optional[str] = ..., in_sight_ms: _Optional[int] = ...) -> None: ...
