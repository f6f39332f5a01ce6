"""The former names of the clients' methods. They work for one version more; each use warns and names the new one.

Type checkers know the new names alone.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

# client -> former name -> new name; the blocking clients have those of the awaiting ones
FORMER = {
    "IndexClient": {"generations": "list_generations"},
    "PeopleClient": {"agreement": "get_agreement", "tasks": "list_tasks"},
    "RegistryClient": {"labels": "list_labels", "rollouts": "get_rollouts"},
    "SamplerClient": {"pairs": "list_pairs", "run": "get_run", "runs": "list_runs"},
    "TrainerClient": {
        "checkpoint": "get_checkpoint",
        "checkpoints": "list_checkpoints",
        "job": "get_job",
        "jobs": "list_jobs",
    },
}
LISTED = ("checkpoints", "generations", "jobs", "labels", "runs")  # these returned lists, as they still do


class Renamed:
    """A client some of whose methods had other names."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            new = FORMER.get(kind.removeprefix("Blocking"), {}).get(name)
            if new is None:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            warnings.warn(f"{kind}.{name} is now {new}; {name} goes with 0.2", DeprecationWarning, stacklevel=2)
            return _gathering(getattr(self, new)) if name in LISTED else getattr(self, new)


def _gathering(listing: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the method that returns a list, awaited or not, of one that iterates."""

    def gather(*args: Any, **kwargs: Any) -> Any:
        found = listing(*args, **kwargs)
        return _gathered(found) if isinstance(found, AsyncIterator) else list(found)

    return gather


async def _gathered(found: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in found]
