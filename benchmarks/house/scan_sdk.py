"""Every public method of the SDK's awaiting clients, with every odd value for every parameter, one at a time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from aeenc import AsyncClient, Channel, errors, values
from aeenc.calls.retrieval import Fusion, Retrieval
from aeenc.oracle import EXPLAINS, Candidate, Task, Verdict
from aeenc.oracles.client import OracleClient
from aeenc.transport.targets import ConnectOptions
from benchmarks.house.scan_values import HUGE, PYTHON, Scanned

TOGETHER = 16  # calls at once
ITEMS = 3  # of a stream, after which the caller has seen enough
STREAM_S = 0.5  # what may be a watch, which ends when its caller does
HANGS_S = 30.0
_TASK = Task("t", "r", "iron", (), (), (Candidate("f1", "iron", 1, 0.5),))
# What a parameter without a default gets while another one is odd.
SOUND: dict[str, Any] = {
    "corpus": "science",
    "texts": ["iron"],
    "batches": [["iron"]],
    "query": "iron",
    "premises": ["iron"],
    "prototypes": [("iron", "ice")],
    "queries": np.ones((1, 32), np.float32),
    "ids": ["f1"],
    "hypotheses": [("h1", "iron")],
    "explanations": [("iron", ["f1"])],
    "pairs": [values.Pair(query="iron", premise_id="f1", premise="iron")],
    "verdicts": ["f1"],
    "lease": values.Lease(lease_id="l", task=values.OracleTask(task_id="t")),
    "overlap": 1,
    "tasks": [_TASK],
    "space_id": "s",
}
OWN: dict[str, dict[str, Any]] = {
    "IndexClient.build": {"premises": [values.Premise(id="f1", text="iron")], "resume_s": 0.1},
    "TrainerClient.evaluate": {"queries": [("iron", ["ice"])]},
}
GIVEN = (
    values.Premise(id="f1", text="iron"),
    values.Pair(query="iron", premise_id="f1", premise="iron"),
    values.Provenance(),
    values.RunConfig(),
    values.NegativeFilter(),
    Fusion(),
    Retrieval(),
    Verdict(EXPLAINS),
    _TASK,
    _TASK.candidates[0],
)
_CLIENTS = ("encoder", "index", "sampler", "people", "trainer", "registry")


async def scan_sdk(client: AsyncClient, oracle: str, names: Collection[str] = tuple(PYTHON)) -> Scanned:
    """Calls all methods of the clients of a running fleet, and of an oracle's at its address."""
    found = Scanned()
    channel = Channel(oracle, timeout_s=5.0, retry=False)
    owners = [client, *(getattr(client, name) for name in _CLIENTS), OracleClient(channel)]
    gate = asyncio.Semaphore(TOGETHER)

    async def one(method: Callable[..., Any], name: str, arguments: dict[str, Any], what: str) -> None:
        async with gate:
            await _call(found, method, name, arguments, what)

    calls = [*(call for owner in owners for call in _calls(owner, names)), *_values(names)]
    await asyncio.gather(*(one(*call) for call in calls))
    await channel.close()
    return found


def _calls(owner: object, names: Collection[str]) -> Iterator[tuple[Callable[..., Any], str, dict[str, Any], str]]:
    kind = type(owner)
    for name, function in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_") or (name == "close" and kind in {AsyncClient, Channel}):
            continue
        method, title = getattr(owner, name), f"{kind.__name__}.{name}"
        parameters = list(_parameters(function))
        own = {**SOUND, **OWN.get(title, {})}
        needed = {
            one.name: own.get(one.name, "x")
            for one in parameters
            if one.name != "self" and (one.default is one.empty or one.name in OWN.get(title, {}))
        }
        yield method, title, needed, "nothing odd"
        for parameter in parameters:
            if parameter.name == "self":
                continue
            for label in names:
                value = PYTHON[label]
                if value is HUGE and "str" not in str(parameter.annotation):
                    continue
                is_callback = "Callable" in str(parameter.annotation) and value is not None
                yield (
                    method,
                    title,
                    {**needed, parameter.name: value},
                    f"{parameter.name}={label}" + (" (callback)" if is_callback else ""),
                )


def _parameters(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """The parameters of a method, with each keyword of a TypedDict instead of `**options`."""
    for one in inspect.signature(function).parameters.values():
        if one.kind is not one.VAR_KEYWORD:
            yield one
            continue
        keywords = inspect.getmodule(function).__dict__[one.annotation.removeprefix("Unpack[").removesuffix("]")]
        for name, kind in keywords.__annotations__.items():
            yield inspect.Parameter(name, one.KEYWORD_ONLY, default=None, annotation=kind)


def _values(names: Collection[str]) -> Iterator[tuple[Callable[..., Any], str, dict[str, Any], str]]:
    """Values that callers make and hand to the clients, with an odd field, and connections with an odd option."""
    for value in GIVEN:
        for field in fields(value):
            for label in names:
                change = {field.name: PYTHON[label]}
                yield partial(_written, value), type(value).__name__, change, f"{field.name}={label}"
    for option in ("retry", *ConnectOptions.__annotations__):
        for label in names:
            yield _connected, "AsyncClient", {option: PYTHON[label]}, f"{option}={label}"


def _written(value: Any, **change: Any) -> object:
    changed = replace(value, **change)
    if isinstance(changed, Verdict):
        return changed.to_proto("f1")
    return changed.to_message() if hasattr(changed, "to_message") else changed.to_proto()


async def _connected(**options: Any) -> None:
    await AsyncClient(**options).close()


async def _call(found: Scanned, method: Callable[..., Any], name: str, arguments: dict[str, Any], what: str) -> None:
    """Makes one call. Only a class of `aeenc.errors` other than the unexpected one may leave it."""
    stream = False
    try:
        async with asyncio.timeout(HANGS_S):
            answer = method(**arguments)
            stream = isinstance(answer, AsyncIterator)
            if stream:
                async with asyncio.timeout(STREAM_S), aclosing(answer):
                    seen = 0
                    async for _ in answer:
                        if (seen := seen + 1) >= ITEMS:
                            break
            elif inspect.isawaitable(answer):
                await answer
    except errors.AeencError as error:
        wrong = type(error) is errors.AeencError
        found.ended(error.code, f"{name}: unexpected | {what}: {error}" if wrong else "")
    except TimeoutError:
        found.ended("open stream" if stream else "hangs", "" if stream else f"{name}: hangs | {what}")
    except Exception as error:  # noqa: BLE001 -- to find these is what the scan is for
        own = what.endswith("(callback)")  # the caller's own code failed
        kind = f"{name} {what.partition('=')[0]}: {type(error).__name__}"
        found.ended(type(error).__name__, "" if own else f"{kind} | {what}: {error!s:.150}")
    else:
        found.ended("OK")
