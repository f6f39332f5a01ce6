"""The client of the AE-Enc services: premise retrieval that learns what explains.

import aeenc
client = aeenc.connect()
for hit in client.index.retrieve("science", ["a magnet attracts an iron nail"], k=5)[0]:
    print(f"{hit.score:.3f}  {hit.text}")

A name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what is loaded when it is first used, for editors and type checkers
    from aeenc import errors, oracle, trees, values
    from aeenc.adapters.sentences import AeencEncoder
    from aeenc.blocking import Client
    from aeenc.calls.encoding import Encoded, Scored
    from aeenc.calls.retrieval import Fusion, Hit, Retrieval, Retrieved, RetrieveOptions, SearchResult
    from aeenc.client import AsyncClient
    from aeenc.encoder import EncoderClient
    from aeenc.errors import AeencError
    from aeenc.index import IndexClient
    from aeenc.oracle import Answer, Candidate, Oracle, Task, Verdict
    from aeenc.people import PeopleClient
    from aeenc.registry import RegistryClient
    from aeenc.sampler import SamplerClient
    from aeenc.trainer import TrainerClient
    from aeenc.transport.channel import PATIENT, Channel, Retry
    from aeenc.values import Pair, Premise

    connect = Client  # client = aeenc.connect()
    connect_async = AsyncClient

__version__ = "0.1.0"

__all__ = [
    "PATIENT",
    "AeencEncoder",
    "AeencError",
    "Answer",
    "AsyncClient",
    "Candidate",
    "Channel",
    "Client",
    "Encoded",
    "EncoderClient",
    "Fusion",
    "Hit",
    "IndexClient",
    "Oracle",
    "Pair",
    "PeopleClient",
    "Premise",
    "RegistryClient",
    "Retrieval",
    "RetrieveOptions",
    "Retrieved",
    "Retry",
    "SamplerClient",
    "Scored",
    "SearchResult",
    "Task",
    "TrainerClient",
    "Verdict",
    "connect",
    "connect_async",
    "errors",
    "oracle",
    "trees",
    "values",
]

_NAMES = {
    "adapters.sentences": ("AeencEncoder",),
    "blocking": ("Client", "connect"),
    "calls.encoding": ("Encoded", "Scored"),
    "calls.retrieval": ("Fusion", "Hit", "Retrieval", "RetrieveOptions", "Retrieved", "SearchResult"),
    "client": ("AsyncClient", "connect_async"),
    "encoder": ("EncoderClient",),
    "errors": ("AeencError",),
    "index": ("IndexClient",),
    "oracle": ("Answer", "Candidate", "Oracle", "Task", "Verdict"),
    "people": ("PeopleClient",),
    "registry": ("RegistryClient",),
    "sampler": ("SamplerClient",),
    "trainer": ("TrainerClient",),
    "transport.channel": ("PATIENT", "Channel", "Retry"),
    "values": ("Pair", "Premise"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
_ALIASES = {"connect": "Client", "connect_async": "AsyncClient"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = import_module(f"aeenc.{_HOMES.get(name, name)}")  # a name without a home is a module
        globals()[name] = value = getattr(value, _ALIASES.get(name, name)) if name in _HOMES else value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
