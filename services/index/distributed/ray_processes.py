"""Tasks on Ray: on the processes of a cluster by its address, or on some of this machine, over loopback alone.

Usage statistics and the dashboard are off. Ray pickles what its processes send each other; we store nothing of that.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aeenc import errors
from services.index.distributed.engine import Task
from services.index.distributed.plan import Plan
from services.index.distributed.work import Work
from services.kit import logs

log = logs.get(__name__)
ATTEMPTS = 10  # of a task whose process dies
AHEAD = 2  # tasks for each process that wait for it
OBJECTS_BYTES = 100 * 1024 * 1024  # of Ray's shared memory: results are small
LOOPBACK = "127.0.0.1"
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # as there, wherever we are; read when Ray is imported


class RayProcesses:
    """The processes of a Ray cluster that `connected` has opened."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._attempt = ray.remote(num_cpus=1, max_retries=ATTEMPTS)(_attempt)

    def run(
        self, task: Task, plan: Plan, url: str, arguments: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Runs a task for each number; yields results as they come.

        Raises its error, and Unavailable for an unexpected one, or for a task whose process died at each attempt.
        """
        ray, waiting = self._ray, iter(arguments.items())
        running: dict[Any, int] = {}
        plan_once = ray.put(plan)
        room = max(1, int(ray.cluster_resources().get("CPU", 1))) * (1 + AHEAD)
        try:
            while True:
                for number, given in waiting:
                    running[self._attempt.remote(task, plan_once, url, number, given)] = number
                    if len(running) >= room:
                        break
                if not running:
                    return
                for done in ray.wait(list(running))[0]:
                    number = running.pop(done)
                    yield number, self._result(done, task, number)
        finally:
            for left in running:
                ray.cancel(left, force=True)

    def _result(self, done: Any, task: Task, number: int) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            cause, often = error, f" {ATTEMPTS + 1} times or its machine is gone"
            if isinstance(error, self._ray.exceptions.RayTaskError):  # raised by the task, which is not tried again
                cause, often = error.cause, ""
                log.exception("a task has failed unexpectedly", task=task.__name__, number=number)
            said = next(iter(str(cause).splitlines()), "")
            raise errors.Unavailable(
                f"task {task.__name__} {number} failed{often} ({type(cause).__name__}: {said}); mend that and build "
                "again: what is finished is kept"
            ) from error
        if "error" in answer:
            name, message, reason = answer["error"]
            raise getattr(errors, name)(message, reason=reason)
        return answer


def _attempt(task: Task, plan: Plan, url: str, number: int, given: tuple[Any, ...]) -> dict[str, Any]:
    """Runs in Ray's process. An error that a caller may get is an answer: trying again would not help."""
    try:
        return task(plan, Work(url), number, *given)
    except errors.AeencError as error:
        return {"error": (type(error).__name__, error.message, error.reason)}


@contextmanager
def connected(address: str = "", workers: int = 0) -> Iterator[RayProcesses]:
    """Opens a cluster by its address, or starts `workers` processes here (0: one a core) and ends them.

    Raises FailedPrecondition where Ray is not installed, Unavailable where the cluster does not answer.
    """
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"} | ({} if address else ON_LOOPBACK)
    try:
        ray: Any = importlib.import_module("ray")  # typed in parts only
    except ModuleNotFoundError:
        raise errors.FailedPrecondition("--engine ray needs Ray; install aeenc-services[index-ray]") from None
    quiet = {"log_to_driver": False, "logging_level": "error"}
    with tempfile.TemporaryDirectory(prefix="aeenc-ray-", ignore_cleanup_errors=True) as folder:
        try:
            try:
                if address:
                    ray.init(address=address, **quiet)
                else:
                    os.environ["RAY_TMPDIR"] = folder
                    _start(ray, num_cpus=workers or None, include_dashboard=False, **quiet)
            except Exception as error:  # where its processes do not start in time, Ray raises a plain one
                said = str(error).splitlines()[0]
                raise errors.Unavailable(
                    f"Ray does not answer at {address or 'this machine'} ({said}); start it, or try again"
                ) from error
            if not address and ray.util.get_node_ip_address() != LOOPBACK:
                raise errors.FailedPrecondition(
                    "Ray listens on all addresses: something has imported it before, or its release does not fit the "
                    "extra index-ray; build in a process of its own"
                )
            yield RayProcesses(ray)
        finally:
            ray.shutdown()


def _start(ray: Any, **options: Any) -> None:
    """Starts Ray's processes here; once more if they are not up in the 30 s that Ray allows, as on a busy machine."""
    try:
        ray.init(object_store_memory=OBJECTS_BYTES, **options)
    except Exception:  # noqa: BLE001 - a plain one, as above
        ray.shutdown()
        ray.init(object_store_memory=OBJECTS_BYTES, **options)
