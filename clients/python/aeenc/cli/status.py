"""`aeenc status`: what the four services say about themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import typer

import aeenc
from aeenc.cli.output import output_of, table
from aeenc.cli.targets import Targets, targets_of
from aeenc.errors import AeencError
from aeenc.v1 import encoder_pb2, index_pb2, sampler_pb2, trainer_pb2, types_pb2

PATIENCE_S = 3.0
Answer = dict[str, Any] | AeencError


def encoder_dict(info: encoder_pb2.EncoderServiceGetInfoResponse) -> dict[str, Any]:
    """The encoder's versions and labels."""
    return {
        **_service(info.service),
        "space_id": info.default_space_id,
        "runtime": info.runtime,
        "versions": [loaded.version for loaded in info.versions],
        "labels": {applied.label: applied.version for applied in info.labels},
    }


def index_dict(info: index_pb2.IndexServiceGetInfoResponse) -> dict[str, Any]:
    """The index's corpora with what serves them."""
    corpora = {
        found.corpus: {"generation": found.active.id, "premises": found.active.premises} for found in info.corpora
    }
    return {**_service(info.service), "corpora": corpora}


def sampler_dict(info: sampler_pb2.SamplerServiceGetInfoResponse) -> dict[str, Any]:
    """The sampler's oracles and runs."""
    waiting = {run.run_id: run.reason for run in info.waiting_runs}
    told = {"oracles": list(info.oracles), "active_runs": list(info.active_runs), "waiting_runs": waiting}
    return {**_service(info.service), **told}


def trainer_dict(info: trainer_pb2.TrainerServiceGetInfoResponse) -> dict[str, Any]:
    """The trainer's space, device and job."""
    told = {"space_id": info.default_space_id, "device": info.device, "active_job": info.active_job}
    return {**_service(info.service), **told}


def _service(info: types_pb2.ServiceInfo) -> dict[str, Any]:
    state = types_pb2.ServiceState.Name(info.state).removeprefix("SERVICE_STATE_")
    return {"state": state, "reason": info.state_reason, "instance": info.instance, "software": info.software_version}


async def ask(targets: Targets) -> dict[str, Answer]:
    """What each service answers, or the error it ended with; all are asked at once."""
    async with aeenc.connect_async(**targets.options(timeout_s=min(targets.timeout_s, PATIENCE_S))) as client:

        async def encoder() -> dict[str, Any]:
            return encoder_dict(await client.encoder.info())

        async def index() -> dict[str, Any]:
            return index_dict(await client.index.info())

        async def sampler() -> dict[str, Any]:
            return sampler_dict(await client.sampler.info())

        async def trainer() -> dict[str, Any]:
            return trainer_dict(await client.trainer.info())

        questions = {"encoder": encoder(), "index": index(), "sampler": sampler(), "trainer": trainer()}
        answers = await asyncio.gather(*(_answer(question) for question in questions.values()))
        return dict(zip(questions, answers, strict=True))


async def _answer(question: Awaitable[dict[str, Any]]) -> Answer:
    try:
        return await question
    except AeencError as error:
        return error


def _row(service: str, target: str, answer: Answer) -> tuple[str, str, str, str]:
    if isinstance(answer, AeencError):
        return service, target, answer.code, answer.message
    told = [answer["reason"]]
    told += [f"{label} = {version}" for label, version in answer.get("labels", {}).items()]
    told += [f"versions: {', '.join(answer['versions'])}"] if answer.get("versions") else []
    told += [
        f"{name}: {corpus['premises']:,} premises, generation {corpus['generation'] or 'none'}"
        for name, corpus in answer.get("corpora", {}).items()
    ]
    told += [f"oracles: {', '.join(answer['oracles'])}"] if answer.get("oracles") else []
    told += [f"active runs: {', '.join(answer['active_runs'])}"] if answer.get("active_runs") else []
    told += [f"run {run} waits: {reason}" for run, reason in answer.get("waiting_runs", {}).items()]
    told += [f"{name}: {answer[name]}" for name in ("device", "active_job") if answer.get(name)]
    return service, target, answer["state"], "\n".join(line for line in told if line)


def status(context: typer.Context) -> None:
    """Shows state, versions, labels, corpora, oracles and work of the four services."""
    targets = targets_of(context)
    answers = asyncio.run(ask(targets))
    addresses = {service: str(getattr(targets, service)) for service in answers}
    failed = [answer for answer in answers.values() if isinstance(answer, AeencError)]
    values = {
        service: {
            "target": addresses[service],
            **(
                {"error": {"status": answer.code, "message": answer.message}}
                if isinstance(answer, AeencError)
                else answer
            ),
        }
        for service, answer in answers.items()
    }
    rows = [_row(service, addresses[service], answer) for service, answer in answers.items()]
    output_of(context).result({"services": values}, table(["service", "target", "state", "about"], rows))
    if failed:
        raise failed[0]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("status")(status)
