"""The state of the four services as plain values: for `aeenc status` and for the MCP server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from aeenc import values
from aeenc.client import AsyncClient
from aeenc.errors import AeencError
from aeenc.transport.targets import Targets

PATIENCE_S = 3.0
ServiceReport = dict[str, Any] | AeencError


def encoder_dict(info: values.EncoderInfo) -> dict[str, Any]:
    """Reads the encoder's versions, and its labels: those of its default space, and apart those of every other."""
    labels: dict[str, dict[str, str]] = {info.default_space_id: {}}
    for applied in info.labels:
        labels.setdefault(applied.space_id, {})[applied.label] = applied.version
    return {
        **_service(info.service),
        "space_id": info.default_space_id,
        "runtime": info.runtime,
        "versions": [loaded.version for loaded in info.versions],
        "labels": labels.pop(info.default_space_id),
        "labels_of_other_spaces": labels,
    }


def index_dict(info: values.IndexInfo) -> dict[str, Any]:
    """Reads the index's corpora and their active generations."""
    corpora = {
        found.corpus: {"generation": found.active.id, "premises": found.active.premises} for found in info.corpora
    }
    return {**_service(info.service), "corpora": corpora}


def sampler_dict(info: values.SamplerInfo) -> dict[str, Any]:
    """Reads the sampler's oracles and runs."""
    waiting = {run.run_id: run.reason for run in info.waiting_runs}
    told = {"oracles": list(info.oracles), "active_runs": list(info.active_runs), "waiting_runs": waiting}
    return {**_service(info.service), **told}


def trainer_dict(info: values.TrainerInfo) -> dict[str, Any]:
    """Reads the trainer's space, device and job."""
    told = {"space_id": info.default_space_id, "device": info.device, "active_job": info.active_job}
    return {**_service(info.service), **told}


def _service(info: values.ServiceInfo) -> dict[str, Any]:
    return {
        "state": info.state.name,
        "reason": info.state_reason,
        "instance": info.instance,
        "software": info.software_version,
    }


async def ask(targets: Targets) -> dict[str, ServiceReport]:
    """Asks all services at once; returns the report of each, or its error."""
    async with AsyncClient(**targets.options(timeout_s=min(targets.timeout_s, PATIENCE_S))) as client:

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


async def _answer(question: Awaitable[dict[str, Any]]) -> ServiceReport:
    try:
        return await question
    except AeencError as error:
        return error


def report_of(targets: Targets, answers: Mapping[str, ServiceReport]) -> dict[str, Any]:
    """Converts the answers to plain values, with the address of each service; an error becomes status and message."""
    return {
        "services": {
            service: {"target": str(getattr(targets, service)), **_values(answer)}
            for service, answer in answers.items()
        }
    }


def _values(answer: ServiceReport) -> dict[str, Any]:
    if isinstance(answer, AeencError):
        return {"error": {"status": answer.code, "message": answer.message}}
    return answer
