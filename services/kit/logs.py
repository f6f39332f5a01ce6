"""Structured logs: one line for each event, for a terminal or as JSON, with the request id of its call."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TextIO, cast

import structlog

from aeenc.errors import InvalidArgument
from services.kit import tracing
from services.kit.call import CALL

LOGS_KEPT = 3  # besides the one that is written


class LogOutput:
    """Where the lines of this process go. One that cannot be written is lost and counted: no call fails for its log."""

    lost = 0  # of the process, as its log is

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes one line."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # a full disk, a pipe that nobody reads, a closed stream
            LogOutput.lost += 1
            return len(text)

    def flush(self) -> None:
        """Flushes what is written."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class LogFile(LogOutput):
    """The file in place of stdout and stderr of one process: tracebacks and what C libraries print are in it, too.

    Once it has `most_bytes` it is set aside, and the next line begins another. A child process goes on writing to the
    file of its start. Raises InvalidArgument for a file that cannot be written.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        super().__init__(sys.stderr)
        self._path, self._most_bytes = path, most_bytes
        self._lock = threading.Lock()
        try:
            self._begin()
        except OSError as error:
            raise InvalidArgument(f"log_file {path} cannot be written ({error.strerror}); name another") from error

    def write(self, text: str) -> int:
        """Writes one line."""
        with self._lock:
            with contextlib.suppress(OSError, ValueError):  # such as a full disk: the old file goes on
                if os.fstat(sys.stderr.fileno()).st_size >= self._most_bytes:
                    set_aside(self._path)
                    self._begin()
            return super().write(text)

    def _begin(self) -> None:
        with self._path.open("ab") as file:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(file.fileno(), stream.fileno())


def set_aside(path: Path) -> None:
    """Renames a log to `.1`, the one before to `.2`, and so on; the oldest of `LOGS_KEPT` goes."""
    if not path.exists():
        return
    for number in range(LOGS_KEPT, 1, -1):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(f"{path.name}.{number - 1}").replace(path.with_name(f"{path.name}.{number}"))
    path.replace(path.with_name(f"{path.name}.1"))


def configure(
    *,
    log_format: str,
    log_level: str,
    service: str,
    instance: str,
    log_file: Path | None = None,
    log_file_bytes: int = 0,
) -> None:
    """Sets up the logging of the process: to stderr, or to a `LogFile`. Call it once, in `__main__`."""
    output = cast("TextIO", LogFile(log_file, log_file_bytes) if log_file else LogOutput(sys.stderr))
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        name_call,
        _name_span,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor]
    if log_format == "json":
        # Neither format shows the values of variables: they hold callers' texts and credentials.
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        renderer = [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        renderer = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, log_level.upper())),
        logger_factory=structlog.WriteLoggerFactory(output),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, instance=instance)
    logging.basicConfig(level=logging.WARNING, stream=output, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("grpc._cython.cygrpc").addFilter(_shorten)


def name_call(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Adds the request id of the call in work, its caller, and the trace that it came in."""
    call = CALL.get()
    return event if call is None else {**call.log_fields(), **event}


def _name_span(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Adds the ids of the trace and the span that a line belongs to."""
    event.update(tracing.ids())
    return event


def _shorten(record: logging.LogRecord) -> bool:
    """Shortens what callers can make grpcio log: no traceback, and no header value, which may be a credential."""
    message = str(record.msg)
    if message.startswith("Invalid encoding on"):
        record.msg, record.args, record.exc_info = "a caller sent a header that is not UTF-8", (), None
    elif message.startswith("ExecuteBatchError raised in core by servicer method"):
        record.msg, record.exc_info = f"a caller left before the answer{message.partition('method')[2]}", None
    return True


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Returns a logger: `log.info("generation activated", corpus=…)`."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(module=name)
    return logger
