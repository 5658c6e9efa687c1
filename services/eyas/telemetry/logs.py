"""Logs: one event a line, JSON in containers, plain text for people, the standard library's loggers included."""

import logging
import sys
from typing import TextIO

import structlog


def configure(service: str, as_json: bool, stream: TextIO | None = None) -> None:
    """Sends structlog's and the standard library's events to standard error or `stream`, each with the `service`."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    render: list[structlog.typing.Processor] = (
        [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=False)]
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, _naming(service)],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, _naming(service), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )


def _naming(service: str) -> structlog.typing.Processor:
    def name(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    return name
