"""Every call that changes something, sent again with the same content and with other content, also after a restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from benchmarks.harness.rows import Rows
from benchmarks.promises.mutations.mutation import Mutation, Subject
from benchmarks.promises.mutations.table import MUTATIONS, mutable_world, unlisted

SUBJECTS = 5  # of each RPC


@dataclass
class Repetition:
    """One call, its answer, and what was wrong with the answers to its repetitions."""

    subject: Subject
    request: Any
    other: Any
    answer: Any
    after: str
    faults: list[str] = field(default_factory=list)


def _plain(answer: Any, ignored: tuple[str, ...]) -> Any:
    """An answer without the fields that may differ, such as the progress of a run that goes on."""
    copy = type(answer)()
    copy.CopyFrom(answer)
    for path in ignored:
        *parents, name = path.split(".")
        messages = [copy]
        for parent in parents:
            below = [getattr(message, parent) for message in messages]
            messages = [one for found in below for one in ([found] if isinstance(found, Message) else found)]
        for message in messages:
            if name in message.DESCRIPTOR.fields_by_name:
                message.ClearField(name)
    return copy


async def _repeat(mutation: Mutation, one: Repetition, when: str) -> None:
    try:
        again = await mutation.call(one.request, 30.0)
        if _plain(again, mutation.ignored) != _plain(one.answer, mutation.ignored):
            one.faults.append(f"{when}: another answer, {again} and not {one.answer}".replace("\n", " "))
    except grpc.aio.AioRpcError as error:
        one.faults.append(f"{when}: {error.code().name} {error.details()}")
    if not mutation.refusal:
        return
    try:
        await mutation.call(one.other, 30.0)
        one.faults.append(f"{when}: other content was accepted")
    except grpc.aio.AioRpcError as error:
        if error.code().name != mutation.refusal or not error.details():
            one.faults.append(f"{when}: other content got {error.code().name} {error.details()}")


async def _first(mutation: Mutation) -> list[Repetition]:
    done = []
    for subject in (await mutation.prepare(SUBJECTS))[:SUBJECTS]:
        request, other, after = subject.make()
        done.append(Repetition(subject, request, other, await mutation.call(request, 30.0), after))
    return done


async def repeated_requests(rows: Rows, only: str = "") -> None:
    """One row an RPC."""
    missing = unlisted()
    rows.add("RPCs without a place in the tables", len(missing), "RPCs", "= 0", not missing, missing or None)
    async with mutable_world() as world:
        for service in ("index", "sampler", "trainer"):
            chosen = [one(world) for one in MUTATIONS if one.service == service and only in one.rpc]
            done = {mutation: await _first(mutation) for mutation in chosen}
            for when in ("at once", "after a restart"):
                for mutation, repetitions in done.items():
                    for one in repetitions:
                        await _repeat(mutation, one, when)
                if when == "at once":
                    for process in world.fleet.processes[service]:
                        process.kill()
                    await world.restart(service)
            for mutation, repetitions in done.items():
                states = await mutation.states([one.subject for one in repetitions])
                faults = [fault for one in repetitions for fault in one.faults]
                faults += [
                    f"is {state}, not {one.after}"
                    for one, state in zip(repetitions, states, strict=True)
                    if state != one.after
                ]
                told = mutation.refusal or "no request id: repeating it changes nothing more"
                name = f"{mutation.rpc}: repeated, same content and other"
                rows.at_most(name, len(faults), "faults", 0, faults[:2] or told)
