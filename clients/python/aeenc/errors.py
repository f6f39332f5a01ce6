"""The errors of AE-Enc, the same classes in a service and at its caller.

    AeencError                      INTERNAL             unexpected; no internals leave the server
    ├── InvalidArgument             INVALID_ARGUMENT     the request itself is wrong; do not retry it
    │   ├── InvalidTree             INVALID_ARGUMENT     a tree file cannot be read; names file and line
    │   └── TooLarge                INVALID_ARGUMENT     over a limit stated in GetInfo
    ├── NotFound                    NOT_FOUND            the named corpus, run, job, version… does not exist
    ├── AlreadyExists               ALREADY_EXISTS       the id is taken by something different
    ├── FailedPrecondition          FAILED_PRECONDITION  the system is not in the state the call needs
    │   ├── SpaceMismatch           FAILED_PRECONDITION  vectors of one space meet an index of another
    │   └── VersionNotLoaded        FAILED_PRECONDITION  the encoder does not hold the asked version
    ├── Aborted                     ABORTED              expected revision or generation has moved on; read again
    ├── Overloaded                  RESOURCE_EXHAUSTED   refused before any work; carries retry_after_s
    ├── Unavailable                 UNAVAILABLE          a dependency is away or the disk is full; retry later
    ├── DeadlineExceeded            DEADLINE_EXCEEDED    the caller's time is over
    ├── Cancelled                   CANCELLED            the caller has gone
    ├── Unauthenticated             UNAUTHENTICATED      no credential, or a wrong one
    ├── PermissionDenied            PERMISSION_DENIED    the credential does not cover this service
    ├── Unimplemented               UNIMPLEMENTED        this build does not answer the call
    └── DataLoss                    DATA_LOSS            a stored file is not what its manifest says

A message names the offending value and the remedy. `reason` is the stable, machine-readable name that travels in
`google.rpc.ErrorInfo`; it is the same for every instance of a class unless given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def install(extra: str) -> str:
    """Says how to install an extra of the SDK: the remedy wherever a package is missing."""
    return f"pip install './clients/python[{extra}]' (in a checkout)"


@dataclass(frozen=True)
class FieldViolation:
    """One wrong field of a request: its path (`texts[3]`) and what is wrong with it."""

    field: str
    description: str


class AeencError(Exception):
    """The root of all errors that a service raises on purpose and a client receives."""

    code = default_reason = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_after_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s
        self.metadata = dict(metadata or {})
        self.request_id = ""  # under which the service's log has the call that failed; empty: no service answered

    def __str__(self) -> str:
        return f"{self.message} (request {self.request_id})" if self.request_id else self.message


class InvalidArgument(AeencError):
    """The request itself is wrong; sending it again cannot help."""

    code = default_reason = "INVALID_ARGUMENT"

    @classmethod
    def field(cls, field: str, description: str) -> InvalidArgument:
        """An error about one field; the message is `field: description`."""
        return cls(f"{field}: {description}", violations=[FieldViolation(field, description)])


class InvalidTree(InvalidArgument):
    """A tree file cannot be read; the message starts with `file:line:`."""

    default_reason = "INVALID_TREE"


class TooLarge(InvalidArgument):
    """A request is over a limit stated in GetInfo."""

    default_reason = "OVER_LIMIT"


class NotFound(AeencError):
    """The named resource does not exist."""

    code = default_reason = "NOT_FOUND"


class AlreadyExists(AeencError):
    """The id is taken by something different."""

    code = default_reason = "ALREADY_EXISTS"


class FailedPrecondition(AeencError):
    """The system is not in the state that the call needs."""

    code = default_reason = "FAILED_PRECONDITION"


class SpaceMismatch(FailedPrecondition):
    """Vectors of one space meet an index of another."""

    default_reason = "SPACE_MISMATCH"


class VersionNotLoaded(FailedPrecondition):
    """The encoder does not hold the asked version."""

    default_reason = "VERSION_NOT_LOADED"


class Aborted(AeencError):
    """The expected revision or generation has moved on; read it again and retry."""

    code = "ABORTED"
    default_reason = "CONFLICT"


class Overloaded(AeencError):
    """Refused before any work was done; `retry_after_s` says when to come back."""

    code = "RESOURCE_EXHAUSTED"
    default_reason = "OVERLOADED"


class Unavailable(AeencError):
    """A dependency is away, the service is starting, or the disk is full; retry later."""

    code = default_reason = "UNAVAILABLE"


class DeadlineExceeded(AeencError):
    """The caller's time is over."""

    code = default_reason = "DEADLINE_EXCEEDED"


class Cancelled(AeencError):
    """The caller has gone, or the work was cancelled."""

    code = default_reason = "CANCELLED"


class Unauthenticated(AeencError):
    """No credential was sent, or a wrong one."""

    code = default_reason = "UNAUTHENTICATED"


class PermissionDenied(AeencError):
    """The credential is known but does not cover this service."""

    code = default_reason = "PERMISSION_DENIED"


class Unimplemented(AeencError):
    """This build does not answer the call."""

    code = default_reason = "UNIMPLEMENTED"


class DataLoss(AeencError):
    """A stored file is not what its manifest says."""

    code = default_reason = "DATA_LOSS"
