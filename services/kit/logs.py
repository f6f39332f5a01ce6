"""Structured logs: one line an event, for a terminal or as JSON, with the request id of the call it belongs to."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(*, log_format: str, level: str, service: str, instance: str) -> None:
    """Sets the process's logging up. Call it once, in `__main__`."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor]
    if log_format == "json":
        # Without the values of variables, in both formats: they hold callers' texts and credentials.
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        renderer = [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        renderer = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, instance=instance)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("grpc._cython.cygrpc").addFilter(_brief)


def _brief(record: logging.LogRecord) -> bool:
    """Takes the traceback off what any caller can make grpcio log, and the value, maybe a credential, of a header."""
    message = str(record.msg)
    if message.startswith("Invalid encoding on"):
        record.msg, record.args, record.exc_info = "a caller sent a header that is not UTF-8", (), None
    elif message.startswith("ExecuteBatchError raised in core by servicer method"):
        record.msg, record.exc_info = f"a caller left before the answer{message.partition('method')[2]}", None
    return True


def get(name: str) -> structlog.stdlib.BoundLogger:
    """A logger: `log.info("generation activated", corpus=…)`."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(module=name)
    return logger
