"""A door to `services.local`, which retrieves in this process: imported when it is opened, as it needs the services.

import aeenc.local
for hit in aeenc.local.open(".aeenc").retrieve("science", ["a magnet attracts an iron nail"], k=5)[0]:
    print(f"{hit.score:.3f}  {hit.text}")
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from aeenc.errors import FailedPrecondition


def open(directory: Path | str, *, version: str = "") -> Any:  # noqa: A001 -- aeenc.local.open, as in the standard library
    """Opens the home of `aeenc up`, or a directory of artifacts, to be read alone; no service need run.

    Returns a `services.local.retriever.LocalRetriever`, whose `retrieve` takes the options of `IndexClient.retrieve`,
    has its results and raises its errors. `version` is the query encoder of calls that name none; by default what label
    `stable` named last in this home, or in a directory of artifacts the premise encoder. Raises FailedPrecondition
    where the services are not installed, NotFound for another directory.
    """
    try:
        found = import_module("services.local.retriever")
    except ModuleNotFoundError as error:
        remedy = "pip install ./clients/python '.[encoder-cpu,index-cpu]' (in a checkout)"
        raise FailedPrecondition(f"aeenc.local needs {error.name}: {remedy}") from None
    return found.open_directory(directory, version=version)
