"""Structured logs: one line for each event, for a terminal or as JSON, with the request id of its call."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(*, log_format: str, level: str, service: str, instance: str) -> None:
    """Sets up the logging of the process. Call it once, in `__main__`."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
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
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, instance=instance)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("grpc._cython.cygrpc").addFilter(_shorten)


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
