"""Methods of clients that are one RPC: a signature, whose parameters are the request's fields, and a docstring.

    @rpc(sampler_pb2.GetRunRequest, value("Run", "run"))
    async def get_run(self, run_id: str) -> values.Run:
        \"\"\"Gets a run.\"\"\"

A method that needs more than that, such as a stream of the caller's items, has a body of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, TypeVar

from google.protobuf.message import Message

from aeenc import values
from aeenc.transport.channel import Channel
from aeenc.values.writing import PARAMETERS, message

WAIT_MARGIN_S = 15.0  # a generation is checked by hash before it is activated
MethodT = TypeVar("MethodT", bound=Callable[..., Any])
_FIELDS = {parameter: field for field, parameter in PARAMETERS.items()}


class ServiceClient:
    """Base of a typed client, with the stub of its service and, through `admin`, that of the service for admins."""

    _services: ClassVar[tuple[type[Any], ...]]

    def __init__(self, channel: Channel, admin: Channel | None = None) -> None:
        self.channel = channel
        self._admin_channel = admin or channel
        self._stub, self._admin = self._services[0](channel.grpc), self._services[-1](self._admin_channel.grpc)


def value(name: str, field: str = "") -> Callable[[Any], Any]:
    """Reads a value by its name from this field of a message ("": from all of it); a list of values from a list."""

    def read(answer: Any) -> Any:
        made, held = getattr(values, name).from_message, getattr(answer, field) if field else answer
        return made(held) if isinstance(held, Message) else [made(one) for one in held]

    return read


def rpc(
    kind: Any,
    read: Callable[[Any], Any] = lambda _: None,
    *,
    pages: str = "",
    made: Mapping[str, Callable[[Any], Any]] = {},
    **options: Any,
) -> Callable[[MethodT], MethodT]:
    """Makes a method of the RPC that takes a request of this kind; it returns what `read` makes of the answer.

    A method that returns an AsyncIterator reads each message of a stream or, with `pages`, each item in this field of
    all pages. `made` turns what is given for a field into what it holds. `options` are those of `Channel.unary` or
    `stream`. A parameter `timeout_s` of the method overrides theirs; the limit of a call with `wait_s` is that and
    WAIT_MARGIN_S. The request of a change gets an id where the caller gives none, so that it may be repeated.
    """
    name, known = kind.__name__.removesuffix("Request").rpartition("Service")[2], kind.DESCRIPTOR.fields_by_name

    def decorate(method: MethodT) -> Any:
        parameters = signature(method)

        def begun(client: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> tuple[Channel, Any, Any, Any]:
            try:
                bound = parameters.bind(client, *args, **given)
            except TypeError as error:
                raise TypeError(f"{method.__qualname__}() {error}") from None  # as Python itself does
            bound.apply_defaults()
            _, *arguments = bound.arguments.items()
            fields = {one if one in known else _FIELDS.get(one, one): value for one, value in arguments}
            limit = {"timeout_s": fields.pop("timeout_s")} if "timeout_s" in fields else {}
            fields |= {field: make(fields[field]) for field, make in made.items()}
            if "wait" in fields:
                limit["timeout_s"] = fields["wait"].ToNanoseconds() / 1e9 + WAIT_MARGIN_S
            if "request_id" in known:
                fields["request_id"] = fields["request_id"] or uuid.uuid4().hex
            channel, stub = client.channel, client._stub  # noqa: SLF001 -- a method of the client
            if not hasattr(stub, name):
                channel, stub = client._admin_channel, client._admin  # noqa: SLF001
            return channel, getattr(stub, name), message(kind, **fields), {**options, **limit}

        @wraps(method)
        async def answered(client: Any, *args: Any, **given: Any) -> Any:
            channel, call, request, limits = begun(client, args, given)
            return read(await channel.unary(call, request, **limits))

        @wraps(method)
        async def each(client: Any, *args: Any, **given: Any) -> AsyncIterator[Any]:
            channel, call, request, limits = begun(client, args, given)
            items = channel.pages(call, request, pages) if pages else channel.stream(call, request, **limits)
            async for one in items:
                yield read(one)

        return each if str(parameters.return_annotation).startswith("AsyncIterator") else answered

    return decorate
