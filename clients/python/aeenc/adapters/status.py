"""The state of the four services as plain values: for `aeenc status` and for the MCP server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from aeenc import values
from aeenc.encoder import EncoderClient
from aeenc.errors import AeencError
from aeenc.index import IndexClient
from aeenc.sampler import SamplerClient
from aeenc.trainer import TrainerClient
from aeenc.transport.channel import Channel
from aeenc.transport.targets import SERVICES, Targets

PATIENCE_S = 3.0
ServiceReport = dict[str, Any] | AeencError


def encoder_dict(info: values.EncoderInfo) -> dict[str, Any]:
    """Reads the encoder's versions, and its labels: those of its default space, and apart those of every other."""
    labels: dict[str, dict[str, str]] = {info.default_space_id: {}}
    for applied in info.labels:
        labels.setdefault(applied.space_id, {})[applied.name] = ", ".join(applied.versions)
    return {
        **_service(info.service),
        "space_id": info.default_space_id,
        "runtime": info.runtime,
        "versions": [loaded.version for loaded in info.versions],
        "labels": labels.pop(info.default_space_id),
        "labels_of_other_spaces": labels,
    }


def index_dict(info: values.IndexInfo, corpora: Iterable[values.CorpusInfo]) -> dict[str, Any]:
    """Reads the index's corpora and their active generations."""
    found = {one.corpus: {"generation": one.active.id, "premises": one.active.premises} for one in corpora}
    return {**_service(info.service), "corpora": found}


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


async def _encoder(channel: Channel) -> dict[str, Any]:
    return encoder_dict(await EncoderClient(channel).info())


async def _index(channel: Channel) -> dict[str, Any]:
    client = IndexClient(channel)
    return index_dict(await client.info(), [one async for one in client.list_corpora()])


async def _sampler(channel: Channel) -> dict[str, Any]:
    return sampler_dict(await SamplerClient(channel).info())


async def _trainer(channel: Channel) -> dict[str, Any]:
    return trainer_dict(await TrainerClient(channel).info())


_REPORTS = {"encoder": _encoder, "index": _index, "sampler": _sampler, "trainer": _trainer}


async def ask(targets: Targets) -> dict[str, ServiceReport]:
    """Asks all services at once; returns the report of each, or its error: that of a malformed address, too."""
    patient = replace(targets, timeout_s=min(targets.timeout_s, PATIENCE_S))
    answers = await asyncio.gather(*(_answer(patient, service) for service in SERVICES))
    return dict(zip(SERVICES, answers, strict=True))


async def _answer(targets: Targets, service: str) -> ServiceReport:
    try:
        channel = targets.channel(service)
        try:
            return await _REPORTS[service](channel)
        finally:
            await channel.close()
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
