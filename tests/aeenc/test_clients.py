"""The signatures of the typed clients, beside the contract that they speak."""

import ast
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from google.protobuf.message import Message
from numpy.typing import NDArray

import aeenc
from aeenc import blocking, errors, oracle, people, sampler, values
from aeenc.calls import encoding, retrieval
from aeenc.trees import Accessible
from aeenc.v1 import encoder_pb2, index_pb2, oracle_pb2, people_pb2, sampler_pb2, trainer_pb2
from aeenc.values.writing import message

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
# The blocking clients are annotated with names that only type checkers import: those of the awaiting clients' modules.
ANNOTATED = {name: value for client in AWAITING for name, value in vars(import_module(client.__module__)).items()}
ANNOTATED |= {"Iterator": Iterator, "NDArray": NDArray, "np": np, "Accessible": Accessible}
LOADED = """
import aeenc, sys

def tell():
    print(*(name for name in sys.modules if name.partition(".")[0] in ("aeenc", "numpy")))

client = aeenc.connect()
tell()
from aeenc.v1 import index_pb2
client.index
aeenc.Retrieved.of(index_pb2.RetrieveResponse())[:]
tell()
client.people
tell()
"""


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
        (aeenc.SamplerClient.start_run, sampler_pb2.RunConfig, {"hypotheses", "accessible", "config", "timeout_s"}),
        (aeenc.TrainerClient.start_job, trainer_pb2.JobConfig, set()),
    ],
)
def test_what_a_call_takes_is_what_its_configuration_has(start, config, also):
    names = set(config.DESCRIPTOR.fields_by_name)
    if "model" in names:
        names = names - {"model"} | {"label", "version"}
    assert set(inspect.signature(start).parameters) - {"self"} == names | also


@pytest.mark.parametrize(
    ("names", "kind", "field"),
    [
        (sampler.CollectName, sampler_pb2.RunConfig, "collect"),
        (sampler.SignName, sampler_pb2.ListPairsRequest, "sign"),
        (people.StateName, people_pb2.ListTasksRequest, "state"),
        (oracle.NodeVerdictName, oracle_pb2.Answer, "node_verdict"),
        (encoding.Role, encoder_pb2.EncodeRequest, "role"),
        (encoding.Lane, encoder_pb2.EncodeRequest, "lane"),
        (encoding.Precision, encoder_pb2.EncodeRequest, "precision"),
        (retrieval.Mode, index_pb2.RetrievalOptions, "mode"),
        (retrieval.FusionMethod, index_pb2.Fusion, "method"),
    ],
)
def test_the_names_that_an_editor_offers_are_the_contracts(names, kind, field):
    def read(given):
        return getattr(message(kind, **{field: given}), field)

    values = kind.DESCRIPTOR.fields_by_name[field].enum_type.values
    assert [read(name) for name in get_args(names)] == [one.number for one in values][1 : len(get_args(names)) + 1]
    assert [read(given) for given in (99, None)] == [99, 0], "the service judges numbers"
    assert [read(one.name) for one in values[1:]] == [one.number for one in values[1:]]
    for wrong in ("blue", "", "unspecified", values[0].name, get_args(names)[0].upper()):
        with pytest.raises(errors.InvalidArgument, match=f"{field}: is '{wrong}'; give one of {get_args(names)[0]}, "):
            read(wrong)


def test_a_name_may_be_a_member_of_an_enum_of_the_callers():
    mine: Any = Enum("mine", {"PREMISE": "premise", "HYBRID": "hybrid", "MIN_MAX": "min_max"}, type=str)
    assert encoding.EncodeOptions(role=mine.PREMISE).request(["a"]).role == encoder_pb2.ROLE_PREMISE
    options = aeenc.Retrieval(mine.HYBRID, aeenc.Fusion(mine.MIN_MAX)).to_proto()
    assert options == aeenc.Retrieval("hybrid", aeenc.Fusion("min_max")).to_proto()


def test_every_method_says_what_it_takes():
    vague = []
    for name, method in methods():
        for parameter in inspect.signature(method).parameters.values():
            is_typed = parameter.annotation is not parameter.empty and parameter.annotation != "Any"
            if parameter.name != "self" and not is_typed:
                vague.append(f"{name}({parameter.name})")
    assert len(methods()) > 80
    assert not vague


def parts(kind: object, seen: set[object]) -> Iterator[type]:
    """The classes in an annotation, and in the public fields of those that are dataclasses."""
    if kind in seen:
        return
    seen.add(kind)
    for argument in get_args(kind):
        if not isinstance(argument, str):
            yield from parts(argument, seen)
    if isinstance(kind, type) and not get_args(kind):
        yield kind
        if is_dataclass(kind):
            hints = get_type_hints(kind, localns=ANNOTATED)
            for field in fields(kind):
                if not field.name.startswith("_"):
                    yield from parts(hints[field.name], seen)


def test_no_method_returns_a_message():
    seen: set[object] = set()
    raw = []
    for name, method in methods():
        returned = SimpleNamespace(__annotations__={"return": method.__annotations__["return"]})
        for kind in parts(get_type_hints(returned, ANNOTATED | method.__globals__)["return"], seen):
            if issubclass(kind, Message):
                raw.append(f"{name} -> {kind.__name__}")
            if is_dataclass(kind):
                assert kind.__dataclass_params__.frozen, f"{name} -> {kind.__name__} is not frozen"
    assert len(seen) > 60
    assert not raw, "give callers values of aeenc.values"


def test_a_program_loads_only_what_it_uses():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    connected, answered, with_people = (set(line.split()) for line in done.stdout.splitlines())
    clients = {client.__module__ for client in AWAITING}
    assert "aeenc.transport.channel" in connected
    assert not connected & {"numpy", "aeenc.trees", "aeenc.values", "aeenc.oracle", "aeenc.v1.sampler_pb2", *clients}
    assert answered & clients == {"aeenc.index"}
    assert not answered & {"numpy", "aeenc.trees", "aeenc.values.types"}
    assert with_people & clients == {"aeenc.index", "aeenc.people"}


def test_every_public_name_is_there_for_programs_and_for_type_checkers():
    module = ast.parse(Path(inspect.getfile(aeenc)).read_text(encoding="utf-8"))
    checked = next(node for node in module.body if isinstance(node, ast.If)).body
    seen = {alias.name for node in checked if isinstance(node, ast.ImportFrom) for alias in node.names}
    seen |= {ast.unparse(target) for node in checked if isinstance(node, ast.Assign) for target in node.targets}
    assert seen == set(aeenc.__all__) <= set(dir(aeenc))
    assert aeenc.connect is aeenc.Client
    for name in aeenc.__all__:
        assert getattr(aeenc, name) is not None
    with pytest.raises(AttributeError, match="module 'aeenc' has no attribute 'Cleint'"):
        aeenc.Cleint  # noqa: B018


def test_what_a_person_answers_is_gone_through_in_the_callers_thread():
    threads: list[threading.Thread] = []

    def ids() -> Iterator[str]:
        threads.append(threading.current_thread())
        yield "p1"

    with aeenc.connect(sampler="127.0.0.1:1", retry=False) as client:
        asked, lease = client.people, values.Lease(lease_id="l")
        for answering in (
            lambda: asked.submit(lease, ids()),
            lambda: asked.submit(lease, oracle.Answer([], additions=ids())),
            lambda: asked.amend("a1", ids(), "ann"),
            lambda: asked.adjudicate("r", "t", ids(), "ann"),
        ):
            with pytest.raises(errors.Unavailable):  # it was sent
                answering()
    assert threads == [threading.current_thread()] * 4
