"""The state of the four services as plain values: for `aeenc status` and for the MCP server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aeenc.errors import AeencError
from aeenc.transport.channel import Channel, Retry
from aeenc.transport.targets import SERVICES, Targets
from aeenc.v1 import (
    encoder_pb2,
    encoder_pb2_grpc,
    index_pb2,
    index_pb2_grpc,
    sampler_pb2,
    sampler_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    types_pb2,
)

PATIENCE_S = 3.0
AT_ONCE = Retry(away_s=0)  # who asks for the state is told at once that nothing answers
ServiceReport = dict[str, Any] | AeencError

# Messages are read as they are: the clients and their values would take most of a command's time to start.


def encoder_dict(info: encoder_pb2.EncoderServiceGetInfoResponse) -> dict[str, Any]:
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


def _service(info: types_pb2.ServiceInfo) -> dict[str, Any]:
    name = types_pb2.ServiceState.DESCRIPTOR.values_by_number.get(info.state)
    return {
        "state": name.name.removeprefix("SERVICE_STATE_") if name else f"UNKNOWN_{info.state}",
        "reason": info.state_reason,
        "instance": info.instance,
        "software": info.software_version,
    }


async def _encoder(channel: Channel) -> dict[str, Any]:
    stub = encoder_pb2_grpc.EncoderServiceStub(channel.grpc)
    return encoder_dict(await channel.unary(stub.GetInfo, encoder_pb2.EncoderServiceGetInfoRequest()))


async def _index(channel: Channel) -> dict[str, Any]:
    stub = index_pb2_grpc.IndexServiceStub(channel.grpc)
    info = await channel.unary(stub.GetInfo, index_pb2.IndexServiceGetInfoRequest())
    corpora = channel.pages(stub.ListCorpora, index_pb2.ListCorporaRequest(page_size=1000), "corpora")
    found = {one.corpus: {"generation": one.active.id, "premises": one.active.premises} async for one in corpora}
    return {**_service(info.service), "corpora": found}


async def _sampler(channel: Channel) -> dict[str, Any]:
    stub = sampler_pb2_grpc.SamplerServiceStub(channel.grpc)
    info = await channel.unary(stub.GetInfo, sampler_pb2.SamplerServiceGetInfoRequest())
    waiting = {run.run_id: run.reason for run in info.waiting_runs}
    report = {"oracles": list(info.oracles), "active_runs": list(info.active_runs), "waiting_runs": waiting}
    return {**_service(info.service), **report}


async def _trainer(channel: Channel) -> dict[str, Any]:
    stub = trainer_pb2_grpc.TrainerServiceStub(channel.grpc)
    info = await channel.unary(stub.GetInfo, trainer_pb2.TrainerServiceGetInfoRequest())
    report = {"space_id": info.default_space_id, "device": info.device, "active_job": info.active_job}
    return {**_service(info.service), **report}


_REPORTS = {"encoder": _encoder, "index": _index, "sampler": _sampler, "trainer": _trainer}


async def ask(targets: Targets) -> dict[str, ServiceReport]:
    """Asks all services at once; returns the report of each, or its error: that of a malformed address, too."""
    patient = replace(targets, timeout_s=min(targets.timeout_s, PATIENCE_S))
    answers = await asyncio.gather(*(_answer(patient, service) for service in SERVICES))
    return dict(zip(SERVICES, answers, strict=True))


async def _answer(targets: Targets, service: str) -> ServiceReport:
    try:
        channel = targets.channel(service, retry=AT_ONCE)
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
            service: {
                "target": str(getattr(targets, service)),
                **({"error": {"status": one.code, "message": one.message}} if isinstance(one, AeencError) else one),
            }
            for service, one in answers.items()
        }
    }
