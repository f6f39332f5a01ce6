"""`aeenc corpus build --engine ray`: a build by the processes of a cluster, or by some of this machine, over loopback.

Called through the entry-point group `aeenc.build_engines`. Usage statistics and the dashboard are off. Ray pickles what
its processes send each other; we store nothing of that.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from aeenc import Client, errors
from aeenc.adapters.facts import Facts
from aeenc.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound
from aeenc.transport.targets import Targets
from services.corpus.active import read_active
from services.corpus.generation import folder_of
from services.index.distributed.engine import Built, Task, build
from services.index.distributed.stages import Encoders, Plan
from services.index.distributed.work import Work, sweep
from services.index.settings import IndexSettings
from services.kit import logs
from services.store.artifacts import Artifact, ArtifactStore
from services.store.objects import open_store

log = logs.get(__name__)
ATTEMPTS = 10  # of a task whose process dies
AHEAD = 2  # tasks for each process that wait for it
OBJECTS_BYTES = 100 * 1024 * 1024  # of Ray's shared memory: results are small
LOOPBACK = "127.0.0.1"
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # as there, wherever we are; read when Ray is imported
FOLDER = "builds"  # among the artifacts: the work of builds that are not finished


def build_on_ray(
    client: Client,
    targets: Targets,
    corpus: str,
    facts: Facts,
    *,
    address: str = "",
    workers: int = 0,
    work: str = "",
    space_id: str = "",
    truncate: bool = False,
    activate: bool = True,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Built:
    """Builds a corpus from files by many processes, checks the generation and activates it.

    The index's own settings (AEENC_INDEX_*) say where its artifacts are and how it searches. `work` is a directory that
    all processes see, or a URL; by default it lies among the artifacts. A build of the same input goes on in it, until
    its generation is activated, or checked if it shall not be.

    Raises FailedPrecondition for another store than the index's, Aborted, and leaves the generation inactive,
    when somebody has activated another one since the start, and what `build` raises.
    """
    if address and workers:
        raise InvalidArgument(
            f"--workers {workers} is for processes of this machine; leave it out with --ray {address}"
        )
    settings = IndexSettings()
    store = open_store(settings.artifacts_dir, settings.artifacts_url, settings.artifacts_cache_bytes)
    serving = {one.corpus: one.active.id for one in client.index.list_corpora() if one.active.id}
    _check_store(store, corpus, serving)
    expected: str | None = None  # also where nobody can read it
    with suppress(DataLoss):
        expected = read_active(store, corpus) or ""
    if "://" not in str(facts.path):  # processes of a cluster work in directories of their own
        facts = replace(facts, path=facts.path.absolute())
    limits: dict[str, Any] = {"text_bytes": settings.text_bytes, "storage": settings.storage}
    plan = Plan.of(corpus, facts, space_id=space_id, truncate=truncate, **limits)
    folder = work or f"{settings.artifacts_url or settings.artifacts_dir}/{FOLDER}"
    if "://" not in folder:
        folder = str(Path(folder).absolute())
    name = f"{corpus}-{plan.digest}"
    sweep(folder, corpus, name, settings.build_keep_s)

    def accept(artifact: Artifact) -> None:
        try:
            client.index.verify(corpus, artifact.id)
        except NotFound as error:
            raise _another_store(store) from error
        if activate:
            client.index.activate(corpus, artifact.id, expected=expected)

    with connected(address, workers) as processes:
        return build(
            plan,
            f"{folder}/{name}",
            processes,
            Encoders(targets, settings.builds),
            store,
            on_progress,
            accept,
        )


def _check_store(store: ArtifactStore, corpus: str, serving: Mapping[str, str]) -> None:
    """Raises FailedPrecondition for a store that lacks the generation which the index serves of a corpus.

    Where it serves none of this corpus, one of any other will do.
    """
    wanted = {corpus: serving[corpus]} if corpus in serving else serving
    for name, generation in wanted.items():
        with suppress(NotFound):
            store.check_exists(folder_of(name), generation)
            return
    if wanted:
        raise _another_store(store)


def _another_store(store: ArtifactStore) -> FailedPrecondition:
    return FailedPrecondition(
        f"the index has other artifacts than {store.url or store.root.absolute()}; run the command with the index's "
        "AEENC_INDEX_ARTIFACTS_DIR or AEENC_INDEX_ARTIFACTS_URL, where these artifacts are"
    )


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
