from aeenc.v1 import oracle_pb2 as _oracle_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_EVENT_KIND_UNSPECIFIED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_QUEUED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_LEASED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_ANSWERED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_EXPIRED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_CONFLICT: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_ADJUDICATED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_RELEASED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_UNDONE: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_AMENDED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_SETTLED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_LOWERED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_WITHDRAWN: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_CLOSED: _ClassVar[TaskEventKind]
    TASK_EVENT_KIND_HASTENED: _ClassVar[TaskEventKind]

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_WAITING: _ClassVar[TaskState]
    TASK_STATE_DECIDED: _ClassVar[TaskState]
    TASK_STATE_CONFLICT: _ClassVar[TaskState]
    TASK_STATE_SETTLED: _ClassVar[TaskState]
    TASK_STATE_WITHDRAWN: _ClassVar[TaskState]
    TASK_STATE_PENDING: _ClassVar[TaskState]
    TASK_STATE_FAILED: _ClassVar[TaskState]
TASK_EVENT_KIND_UNSPECIFIED: TaskEventKind
TASK_EVENT_KIND_QUEUED: TaskEventKind
TASK_EVENT_KIND_LEASED: TaskEventKind
TASK_EVENT_KIND_ANSWERED: TaskEventKind
TASK_EVENT_KIND_EXPIRED: TaskEventKind
TASK_EVENT_KIND_CONFLICT: TaskEventKind
TASK_EVENT_KIND_ADJUDICATED: TaskEventKind
TASK_EVENT_KIND_RELEASED: TaskEventKind
TASK_EVENT_KIND_UNDONE: TaskEventKind
TASK_EVENT_KIND_AMENDED: TaskEventKind
TASK_EVENT_KIND_SETTLED: TaskEventKind
TASK_EVENT_KIND_LOWERED: TaskEventKind
TASK_EVENT_KIND_WITHDRAWN: TaskEventKind
TASK_EVENT_KIND_CLOSED: TaskEventKind
TASK_EVENT_KIND_HASTENED: TaskEventKind
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_WAITING: TaskState
TASK_STATE_DECIDED: TaskState
TASK_STATE_CONFLICT: TaskState
TASK_STATE_SETTLED: TaskState
TASK_STATE_WITHDRAWN: TaskState
TASK_STATE_PENDING: TaskState
TASK_STATE_FAILED: TaskState

class LeaseTaskRequest(_message.Message):
    __slots__ = ("run_id", "annotator", "max_tasks", "request_id", "queue", "hypothesis_id", "task_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    MAX_TASKS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    annotator: str
    max_tasks: int
    request_id: str
    queue: str
    hypothesis_id: str
    task_id: str
    def __init__(self, run_id: _Optional[str] = ..., annotator: _Optional[str] = ..., max_tasks: _Optional[int] = ..., request_id: _Optional[str] = ..., queue: _Optional[str] = ..., hypothesis_id: _Optional[str] = ..., task_id: _Optional[str] = ...) -> None: ...

class LeaseTaskResponse(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_id", "run_id", "task", "expires_at", "remaining", "hypothesis_id", "node_id", "same_keys")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SAME_KEYS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    run_id: str
    task: _oracle_pb2.OracleTask
    expires_at: _timestamp_pb2.Timestamp
    remaining: _duration_pb2.Duration
    hypothesis_id: str
    node_id: str
    same_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease_id: _Optional[str] = ..., run_id: _Optional[str] = ..., task: _Optional[_Union[_oracle_pb2.OracleTask, _Mapping]] = ..., expires_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., hypothesis_id: _Optional[str] = ..., node_id: _Optional[str] = ..., same_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("expires_at",)
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, expires_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReleaseTaskRequest(_message.Message):
    __slots__ = ("lease_id", "reason")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    reason: str
    def __init__(self, lease_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubmitVerdictsRequest(_message.Message):
    __slots__ = ("lease_id", "answer", "seen_upto", "elapsed", "client_seq")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    SEEN_UPTO_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SEQ_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    answer: _oracle_pb2.Answer
    seen_upto: int
    elapsed: _duration_pb2.Duration
    client_seq: int
    def __init__(self, lease_id: _Optional[str] = ..., answer: _Optional[_Union[_oracle_pb2.Answer, _Mapping]] = ..., seen_upto: _Optional[int] = ..., elapsed: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., client_seq: _Optional[int] = ...) -> None: ...

class SubmitVerdictsResponse(_message.Message):
    __slots__ = ("answer_id", "late")
    ANSWER_ID_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    answer_id: str
    late: bool
    def __init__(self, answer_id: _Optional[str] = ..., late: bool = ...) -> None: ...

class UndoVerdictsRequest(_message.Message):
    __slots__ = ("annotator", "count", "run_id", "request_id")
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    annotator: str
    count: int
    run_id: str
    request_id: str
    def __init__(self, annotator: _Optional[str] = ..., count: _Optional[int] = ..., run_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class UndoVerdictsResponse(_message.Message):
    __slots__ = ("answer_ids",)
    ANSWER_IDS_FIELD_NUMBER: _ClassVar[int]
    answer_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, answer_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class AmendVerdictsRequest(_message.Message):
    __slots__ = ("answer_id", "answer", "request_id")
    ANSWER_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    answer_id: str
    answer: _oracle_pb2.Answer
    request_id: str
    def __init__(self, answer_id: _Optional[str] = ..., answer: _Optional[_Union[_oracle_pb2.Answer, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class AmendVerdictsResponse(_message.Message):
    __slots__ = ("answer_id",)
    ANSWER_ID_FIELD_NUMBER: _ClassVar[int]
    answer_id: str
    def __init__(self, answer_id: _Optional[str] = ...) -> None: ...

class AdjudicateRequest(_message.Message):
    __slots__ = ("run_id", "answer", "request_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    answer: _oracle_pb2.Answer
    request_id: str
    def __init__(self, run_id: _Optional[str] = ..., answer: _Optional[_Union[_oracle_pb2.Answer, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class AdjudicateResponse(_message.Message):
    __slots__ = ("answer_id",)
    ANSWER_ID_FIELD_NUMBER: _ClassVar[int]
    answer_id: str
    def __init__(self, answer_id: _Optional[str] = ...) -> None: ...

class CloseTaskRequest(_message.Message):
    __slots__ = ("run_id", "task_id", "annotator", "reason", "request_id", "overlap", "settle")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    task_id: str
    annotator: str
    reason: str
    request_id: str
    overlap: int
    settle: bool
    def __init__(self, run_id: _Optional[str] = ..., task_id: _Optional[str] = ..., annotator: _Optional[str] = ..., reason: _Optional[str] = ..., request_id: _Optional[str] = ..., overlap: _Optional[int] = ..., settle: bool = ...) -> None: ...

class CloseTaskResponse(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: JudgedTask
    def __init__(self, task: _Optional[_Union[JudgedTask, _Mapping]] = ...) -> None: ...

class RetrieveAgainRequest(_message.Message):
    __slots__ = ("run_id", "hypothesis_id", "task_id", "lease_id", "annotator", "dry_run")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    hypothesis_id: str
    task_id: str
    lease_id: str
    annotator: str
    dry_run: bool
    def __init__(self, run_id: _Optional[str] = ..., hypothesis_id: _Optional[str] = ..., task_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., annotator: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class RetrieveAgainResponse(_message.Message):
    __slots__ = ("model_version", "task_ids")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model_version: _Optional[str] = ..., task_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListChangesRequest(_message.Message):
    __slots__ = ("run_id", "task_id", "page_size", "page_token")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    task_id: str
    page_size: int
    page_token: str
    def __init__(self, run_id: _Optional[str] = ..., task_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListChangesResponse(_message.Message):
    __slots__ = ("changes", "next_page_token")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[TaskEvent]
    next_page_token: str
    def __init__(self, changes: _Optional[_Iterable[_Union[TaskEvent, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetTreeRequest(_message.Message):
    __slots__ = ("run_id", "hypothesis_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    hypothesis_id: str
    def __init__(self, run_id: _Optional[str] = ..., hypothesis_id: _Optional[str] = ...) -> None: ...

class GetTreeResponse(_message.Message):
    __slots__ = ("tree",)
    TREE_FIELD_NUMBER: _ClassVar[int]
    tree: TreeState
    def __init__(self, tree: _Optional[_Union[TreeState, _Mapping]] = ...) -> None: ...

class WatchTreeRequest(_message.Message):
    __slots__ = ("run_id", "hypothesis_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    hypothesis_id: str
    def __init__(self, run_id: _Optional[str] = ..., hypothesis_id: _Optional[str] = ...) -> None: ...

class WatchTreeResponse(_message.Message):
    __slots__ = ("tree",)
    TREE_FIELD_NUMBER: _ClassVar[int]
    tree: TreeState
    def __init__(self, tree: _Optional[_Union[TreeState, _Mapping]] = ...) -> None: ...

class TreeState(_message.Message):
    __slots__ = ("run_id", "hypothesis_id", "nodes", "finished", "question", "answer")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    hypothesis_id: str
    nodes: _containers.RepeatedCompositeFieldContainer[TreeNode]
    finished: bool
    question: str
    answer: str
    def __init__(self, run_id: _Optional[str] = ..., hypothesis_id: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[TreeNode, _Mapping]]] = ..., finished: bool = ..., question: _Optional[str] = ..., answer: _Optional[str] = ...) -> None: ...

class TreeNode(_message.Message):
    __slots__ = ("node_id", "parent_id", "premise_id", "text", "depth", "state", "task_id", "accepted", "holders", "answered", "overlap", "answers", "model_version", "author")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    PREMISE_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    parent_id: str
    premise_id: str
    text: str
    depth: int
    state: TaskState
    task_id: str
    accepted: _containers.RepeatedCompositeFieldContainer[_oracle_pb2.Verdict]
    holders: _containers.RepeatedScalarFieldContainer[str]
    answered: int
    overlap: int
    answers: _containers.RepeatedCompositeFieldContainer[_oracle_pb2.Answer]
    model_version: str
    author: str
    def __init__(self, node_id: _Optional[str] = ..., parent_id: _Optional[str] = ..., premise_id: _Optional[str] = ..., text: _Optional[str] = ..., depth: _Optional[int] = ..., state: _Optional[_Union[TaskState, str]] = ..., task_id: _Optional[str] = ..., accepted: _Optional[_Iterable[_Union[_oracle_pb2.Verdict, _Mapping]]] = ..., holders: _Optional[_Iterable[str]] = ..., answered: _Optional[int] = ..., overlap: _Optional[int] = ..., answers: _Optional[_Iterable[_Union[_oracle_pb2.Answer, _Mapping]]] = ..., model_version: _Optional[str] = ..., author: _Optional[str] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("annotator",)
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    annotator: str
    def __init__(self, annotator: _Optional[str] = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    def __init__(self, queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("name", "overlap", "undo", "guideline", "total", "runs", "max_grade", "qualification")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    GUIDELINE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADE_FIELD_NUMBER: _ClassVar[int]
    QUALIFICATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    overlap: int
    undo: _duration_pb2.Duration
    guideline: str
    total: TaskCounts
    runs: _containers.RepeatedCompositeFieldContainer[TaskCounts]
    max_grade: float
    qualification: Qualification
    def __init__(self, name: _Optional[str] = ..., overlap: _Optional[int] = ..., undo: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., guideline: _Optional[str] = ..., total: _Optional[_Union[TaskCounts, _Mapping]] = ..., runs: _Optional[_Iterable[_Union[TaskCounts, _Mapping]]] = ..., max_grade: _Optional[float] = ..., qualification: _Optional[_Union[Qualification, _Mapping]] = ...) -> None: ...

class Qualification(_message.Message):
    __slots__ = ("items", "answered", "passed")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    items: int
    answered: int
    passed: bool
    def __init__(self, items: _Optional[int] = ..., answered: _Optional[int] = ..., passed: bool = ...) -> None: ...

class TaskCounts(_message.Message):
    __slots__ = ("tasks", "waiting", "free", "leased", "decided", "conflicts", "settled", "mine", "mine_hour", "answers_hour", "run_id")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    MINE_FIELD_NUMBER: _ClassVar[int]
    MINE_HOUR_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_HOUR_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    tasks: int
    waiting: int
    free: int
    leased: int
    decided: int
    conflicts: int
    settled: int
    mine: int
    mine_hour: int
    answers_hour: int
    run_id: str
    def __init__(self, tasks: _Optional[int] = ..., waiting: _Optional[int] = ..., free: _Optional[int] = ..., leased: _Optional[int] = ..., decided: _Optional[int] = ..., conflicts: _Optional[int] = ..., settled: _Optional[int] = ..., mine: _Optional[int] = ..., mine_hour: _Optional[int] = ..., answers_hour: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...

class GetAgreementRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetAgreementResponse(_message.Message):
    __slots__ = ("cohen_kappa", "fleiss_kappa", "krippendorff_alpha", "candidates", "annotators", "reports", "positive_agreement", "edge_f1", "controls")
    COHEN_KAPPA_FIELD_NUMBER: _ClassVar[int]
    FLEISS_KAPPA_FIELD_NUMBER: _ClassVar[int]
    KRIPPENDORFF_ALPHA_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    ANNOTATORS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    POSITIVE_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    EDGE_F1_FIELD_NUMBER: _ClassVar[int]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    cohen_kappa: float
    fleiss_kappa: float
    krippendorff_alpha: float
    candidates: int
    annotators: int
    reports: _containers.RepeatedCompositeFieldContainer[AnnotatorReport]
    positive_agreement: float
    edge_f1: float
    controls: _containers.RepeatedCompositeFieldContainer[ControlReport]
    def __init__(self, cohen_kappa: _Optional[float] = ..., fleiss_kappa: _Optional[float] = ..., krippendorff_alpha: _Optional[float] = ..., candidates: _Optional[int] = ..., annotators: _Optional[int] = ..., reports: _Optional[_Iterable[_Union[AnnotatorReport, _Mapping]]] = ..., positive_agreement: _Optional[float] = ..., edge_f1: _Optional[float] = ..., controls: _Optional[_Iterable[_Union[ControlReport, _Mapping]]] = ...) -> None: ...

class AnnotatorReport(_message.Message):
    __slots__ = ("annotator", "answers", "late", "control_verdicts", "control_correct", "median_elapsed", "answers_hour", "refused_share", "positive_agreement")
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    CONTROL_VERDICTS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_CORRECT_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_ELAPSED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_HOUR_FIELD_NUMBER: _ClassVar[int]
    REFUSED_SHARE_FIELD_NUMBER: _ClassVar[int]
    POSITIVE_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    annotator: str
    answers: int
    late: int
    control_verdicts: int
    control_correct: int
    median_elapsed: _duration_pb2.Duration
    answers_hour: int
    refused_share: float
    positive_agreement: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, annotator: _Optional[str] = ..., answers: _Optional[int] = ..., late: _Optional[int] = ..., control_verdicts: _Optional[int] = ..., control_correct: _Optional[int] = ..., median_elapsed: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., answers_hour: _Optional[int] = ..., refused_share: _Optional[float] = ..., positive_agreement: _Optional[_Iterable[float]] = ...) -> None: ...

class ControlReport(_message.Message):
    __slots__ = ("query", "answers", "verdicts", "correct", "mistakes")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    MISTAKES_FIELD_NUMBER: _ClassVar[int]
    query: str
    answers: int
    verdicts: int
    correct: int
    mistakes: _containers.RepeatedCompositeFieldContainer[ControlMistake]
    def __init__(self, query: _Optional[str] = ..., answers: _Optional[int] = ..., verdicts: _Optional[int] = ..., correct: _Optional[int] = ..., mistakes: _Optional[_Iterable[_Union[ControlMistake, _Mapping]]] = ...) -> None: ...

class ControlMistake(_message.Message):
    __slots__ = ("right", "people")
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    PEOPLE_FIELD_NUMBER: _ClassVar[int]
    right: _oracle_pb2.Verdict
    people: int
    def __init__(self, right: _Optional[_Union[_oracle_pb2.Verdict, _Mapping]] = ..., people: _Optional[int] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("run_id", "state", "page_size", "page_token", "annotator", "answered_by")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ANNOTATOR_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_BY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    state: TaskState
    page_size: int
    page_token: str
    annotator: str
    answered_by: str
    def __init__(self, run_id: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., annotator: _Optional[str] = ..., answered_by: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks", "next_page_token")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[JudgedTask]
    next_page_token: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[JudgedTask, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class JudgedTask(_message.Message):
    __slots__ = ("task", "state", "answers", "decision", "conflicts", "question", "question_answer", "hypothesis_id")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    QUESTION_ANSWER_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_ID_FIELD_NUMBER: _ClassVar[int]
    task: _oracle_pb2.OracleTask
    state: TaskState
    answers: _containers.RepeatedCompositeFieldContainer[_oracle_pb2.Answer]
    decision: _oracle_pb2.Answer
    conflicts: _containers.RepeatedScalarFieldContainer[str]
    question: str
    question_answer: str
    hypothesis_id: str
    def __init__(self, task: _Optional[_Union[_oracle_pb2.OracleTask, _Mapping]] = ..., state: _Optional[_Union[TaskState, str]] = ..., answers: _Optional[_Iterable[_Union[_oracle_pb2.Answer, _Mapping]]] = ..., decision: _Optional[_Union[_oracle_pb2.Answer, _Mapping]] = ..., conflicts: _Optional[_Iterable[str]] = ..., question: _Optional[str] = ..., question_answer: _Optional[str] = ..., hypothesis_id: _Optional[str] = ...) -> None: ...

class WatchTasksRequest(_message.Message):
    __slots__ = ("run_id", "from_seq", "from_now")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    FROM_NOW_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    from_seq: int
    from_now: bool
    def __init__(self, run_id: _Optional[str] = ..., from_seq: _Optional[int] = ..., from_now: bool = ...) -> None: ...

class WatchTasksResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: TaskEvent
    def __init__(self, event: _Optional[_Union[TaskEvent, _Mapping]] = ...) -> None: ...

class TaskEvent(_message.Message):
    __slots__ = ("seq", "kind", "task_id", "run_id", "person", "at", "answer", "former_answer_id", "reason", "overlap", "model_version", "query")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PERSON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    FORMER_ANSWER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    seq: int
    kind: TaskEventKind
    task_id: str
    run_id: str
    person: str
    at: _timestamp_pb2.Timestamp
    answer: _oracle_pb2.Answer
    former_answer_id: str
    reason: str
    overlap: int
    model_version: str
    query: str
    def __init__(self, seq: _Optional[int] = ..., kind: _Optional[_Union[TaskEventKind, str]] = ..., task_id: _Optional[str] = ..., run_id: _Optional[str] = ..., person: _Optional[str] = ..., at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., answer: _Optional[_Union[_oracle_pb2.Answer, _Mapping]] = ..., former_answer_id: _Optional[str] = ..., reason: _Optional[str] = ..., overlap: _Optional[int] = ..., model_version: _Optional[str] = ..., query: _Optional[str] = ...) -> None: ...
