"""The signatures of the typed clients, beside the contract that they speak."""

import inspect
from collections.abc import Callable
from typing import Any, get_args

import pytest

import aeenc
from aeenc import blocking, errors, sampler, trainer
from aeenc.calls.inputs import enum_value
from aeenc.v1 import sampler_pb2, trainer_pb2

AWAITING = (
    aeenc.EncoderClient,
    aeenc.IndexClient,
    aeenc.SamplerClient,
    aeenc.PeopleClient,
    aeenc.TrainerClient,
    aeenc.RegistryClient,
)
CLIENTS = (*AWAITING, *(getattr(blocking, f"Blocking{client.__name__}") for client in AWAITING))
CLIENTS += (aeenc.AsyncClient, aeenc.Client)


def methods() -> list[tuple[str, Callable[..., Any]]]:
    return [
        (f"{client.__name__}.{name}", method)
        for client in CLIENTS
        for name, method in inspect.getmembers(client, inspect.isfunction)
        if not name.startswith("_")
    ]


@pytest.mark.parametrize(
    ("start", "config", "also"),
    [
        (aeenc.SamplerClient.start_run, sampler_pb2.RunConfig, {"hypotheses", "config", "timeout_s"}),
        (aeenc.TrainerClient.start_job, trainer_pb2.JobConfig, set()),
    ],
)
def test_what_a_call_takes_is_what_its_configuration_has(start, config, also):
    fields = set(config.DESCRIPTOR.fields_by_name)
    if "model" in fields:
        fields = fields - {"model"} | {"label", "version"}
    assert set(inspect.signature(start).parameters) - {"self"} == fields | also


@pytest.mark.parametrize(
    ("names", "enum"),
    [
        (sampler.CollectName, sampler_pb2.Collect),
        (trainer.ModeName, trainer_pb2.Mode),
        (trainer.LossName, trainer_pb2.Loss),
        (trainer.BatchingName, trainer_pb2.Batching),
    ],
)
def test_the_names_that_an_editor_offers_are_the_contracts(names, enum):
    assert [enum_value(enum, name, "x") for name in get_args(names)] == enum.values()[1:]
    assert [enum_value(enum, given, "x") for given in (99, None)] == [99, None], "the service judges numbers"
    with pytest.raises(errors.InvalidArgument, match=f"colour: is 'blue'; give one of {get_args(names)[0]}, "):
        enum_value(enum, "blue", "colour")


def test_every_method_says_what_it_takes():
    vague = []
    for name, method in methods():
        for parameter in inspect.signature(method).parameters.values():
            is_typed = parameter.annotation is not parameter.empty and parameter.annotation != "Any"
            if parameter.name != "self" and not is_typed:
                vague.append(f"{name}({parameter.name})")
    assert len(methods()) > 80
    assert not vague
