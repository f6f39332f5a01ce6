"""The client of the AE-Enc services: premise retrieval that learns what explains.

import aeenc
client = aeenc.connect()
for hit in client.index.retrieve("science", ["a magnet attracts an iron nail"], k=5)[0]:
    print(f"{hit.score:.3f}  {hit.text}")
"""

from aeenc import errors
from aeenc.adapters.sentences import AeencEncoder
from aeenc.blocking import Client
from aeenc.calls.encoding import Encoded, Scored
from aeenc.calls.retrieval import Fusion, Hit, Retrieval, Retrieved, SearchResult
from aeenc.client import AsyncClient
from aeenc.encoder import EncoderClient
from aeenc.errors import AeencError
from aeenc.index import IndexClient
from aeenc.oracle import Candidate, Oracle, Task, Verdict
from aeenc.people import PeopleClient
from aeenc.registry import RegistryClient
from aeenc.sampler import SamplerClient
from aeenc.trainer import TrainerClient
from aeenc.transport.channel import PATIENT, Channel, Retry

__version__ = "0.1.0"

connect = Client  # client = aeenc.connect()
connect_async = AsyncClient  # inside a running event loop

__all__ = [
    "PATIENT",
    "AeencEncoder",
    "AeencError",
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
    "PeopleClient",
    "RegistryClient",
    "Retrieval",
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
]
