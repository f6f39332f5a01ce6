"""`aeenc doctor`: looks at this machine and at the services, and says of each thing that is wrong how to mend it.

    installed packages, GPU ─┐
    disk, file limit ────────┼─▶ findings ─▶ table or JSON; exit status 1 if one is wrong
    Redis, services, tokens ─┘

It starts and changes nothing. torch, onnxruntime and faiss are looked up, not imported: that would take seconds.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

import aeenc
from aeenc import errors
from aeenc.adapters.status import PATIENCE_S, ServiceReport, ask
from aeenc.transport.addresses import proxy_of
from aeenc.transport.channel import AWAY
from aeenc.transport.targets import SERVICES, Targets
from services.kit.healthcheck import connects
from services.kit.settings import RedisSettings
from services.launcher.fleet import Fleet
from services.launcher.private_redis import find_redis_server
from services.launcher.processes import LOCALHOST
from services.store.durability import assess
from services.store.redis import address, connect, unavailable_if_down

LEAST_FREE_BYTES = 2 * 1024**3
LEAST_FILES = 1024
_REDIS_SERVICES = ("AEENC_SAMPLER_", "AEENC_TRAINER_", "AEENC_ENCODER_")  # whose settings name a Redis
# distributions of which a service needs exactly one, and the extra that brings it
_ONE_OF = (
    (("onnxruntime", "onnxruntime-gpu"), "encoder-cpu or encoder-gpu"),
    (("faiss-cpu", "faiss-gpu"), "index-cpu"),
    (("torch",), "trainer"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. A `note` is worth knowing; only what is `wrong` changes the exit status."""

    check: str
    state: Literal["ok", "note", "wrong"]
    about: str
    remedy: str = ""


async def examine(targets: Targets, fleet: Fleet) -> list[Finding]:
    """Looks at everything."""
    return [
        *_releases(),
        *_packages(),
        *_gpu(_gpus()),
        _disk(fleet.home),
        _files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        *_proxy(targets),
        *await _redis(fleet),
        *_services(targets, await ask(targets), is_up=bool(fleet.running())),
        *await _admin(targets),
    ]


def _installed(name: str) -> str:
    """Returns the version of an installed distribution, or ""."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _releases() -> Iterator[Finding]:
    sdk, services = _installed("aeenc"), _installed("aeenc-services")
    yield Finding("aeenc", "ok", f"aeenc {sdk}, aeenc-services {services}")
    if sdk != aeenc.__version__:
        about = f"the code of aeenc is {aeenc.__version__}, its installation says {sdk or 'nothing'}"
        yield Finding("aeenc", "wrong", about, "install both again: pip install -e clients/python -e .")
    if not neighbours(sdk, services):
        yield Finding("aeenc", "wrong", "the releases are further apart than one minor version", "install both again")


def neighbours(one: str, other: str) -> bool:
    """Whether two releases work together: of one major version, at most one minor version apart."""
    try:
        (major, minor), (other_major, other_minor) = (map(int, text.split(".")[:2]) for text in (one, other))
    except ValueError:
        return False
    return major == other_major and abs(minor - other_minor) <= 1


def _packages() -> Iterator[Finding]:
    for names, extra in _ONE_OF:
        found = [f"{name} {there}" for name in names if (there := _installed(name))]
        if len(found) == 1:
            yield Finding("packages", "ok", found[0])
        elif found:
            remedy = f"uninstall {' and '.join(names)}, then install {extra}"
            yield Finding("packages", "wrong", f"{' and '.join(found)} own the same module", remedy)
        else:
            yield Finding("packages", "wrong", f"no {' or '.join(names)}", f"install the extra {extra}")


def _gpus() -> list[str] | None:
    """Returns name, driver and memory of each GPU; None where nvidia-smi fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip().splitlines()


def _gpu(found: list[str] | None) -> Iterator[Finding]:
    if found is None:
        yield Finding("gpu", "wrong", "nvidia-smi fails", "run nvidia-smi and mend what it names, often the driver")
        return
    yield Finding("gpu", "ok", "; ".join(found) or "none; the processor computes")
    if found and "+cpu" in (torch := _installed("torch")):
        yield Finding("gpu", "note", f"torch {torch} does not use it", "install a build of torch for CUDA")
    if found and _installed("onnxruntime"):
        yield Finding("gpu", "note", "onnxruntime does not use it", "install encoder-gpu in place of encoder-cpu")


def _disk(home: Path) -> Finding:
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    about = f"{free / 1024**3:,.1f} GiB free for {home}"
    if not os.access(there, os.W_OK):
        return Finding("disk", "wrong", f"{there} cannot be written", "choose another folder with AEENC_HOME")
    if free < LEAST_FREE_BYTES:
        remedy = "`aeenc gc` removes what is no longer kept; or choose another folder with AEENC_HOME"
        return Finding("disk", "wrong", about, remedy)
    return Finding("disk", "ok", about)


def _proxy(targets: Targets) -> Iterator[Finding]:
    for name in SERVICES:
        if proxy := proxy_of(getattr(targets, name)):
            remedy = "put its host into no_proxy, if no proxy shall lead there"
            yield Finding("proxy", "note", f"the {name} is called by way of the proxy {proxy}", remedy)


def _files(limit: int) -> Finding:
    if 0 <= limit < LEAST_FILES:  # -1: no limit
        return Finding("files", "wrong", f"a process may open {limit:,} files", f"ulimit -n {LEAST_FILES * 4}")
    return Finding("files", "ok", f"a process may open {limit:,} files" if limit >= 0 else "no limit of open files")


async def _redis(fleet: Fleet) -> list[Finding]:
    """Looks at the Redis of a running fleet, or at the redis-server that `aeenc up` would start."""
    given = [prefix for prefix in _REDIS_SERVICES if f"{prefix}REDIS_URL" in os.environ]
    url = fleet.redis_url() or (os.environ[f"{given[0]}REDIS_URL"] if given else "")
    if not url:
        try:
            return [Finding("redis", "ok", f"{find_redis_server()}, not running")]
        except errors.FailedPrecondition as error:
            problem, _, remedy = error.message.partition(": ")
            return [Finding("redis", "wrong", problem, remedy)]
    prefix = (given or _REDIS_SERVICES)[0]
    try:
        redis = connect(url, **RedisSettings(_env_prefix=prefix).redis())
    except (ValidationError, errors.InvalidArgument) as error:
        return [Finding("redis", "wrong", getattr(error, "message", str(error)), f"mend what begins with {prefix}")]
    try:
        async with aclosing(redis), unavailable_if_down(f"ask {address(url)}"):
            await redis.ping()
            assurance = await assess(redis)
    except errors.Unavailable as error:
        return [Finding("redis", "wrong", error.message, "start it; `aeenc up` starts a private one")]
    found = [Finding("redis", "ok", f"Redis answers at {address(url)}")]
    found += [Finding("redis", "wrong", doubt, remedy) for doubt, remedy in assurance.doubts]
    if assurance.untold:
        found.append(Finding("redis", "note", assurance.untold, "ask who runs it"))
    return found


def _services(targets: Targets, answers: dict[str, ServiceReport], *, is_up: bool) -> Iterator[Finding]:
    is_up = is_up or not all(_is_away(answer) or _is_malformed(answer) for answer in answers.values())
    for name, answer in answers.items():
        target = getattr(targets, name)
        if not isinstance(answer, errors.AeencError):
            yield from _answering(name, target, answer)
        elif is_up or not _is_away(answer) or not target.startswith(f"{LOCALHOST}:"):
            yield Finding(name, "wrong", answer.message, _remedy(name, answer))
        elif connects(target):
            remedy = "end it, or start the services at other ports: aeenc up --base-port N"
            yield Finding(name, "wrong", f"{target} is taken by a process that is no service", remedy)
        else:
            yield Finding(name, "note", f"nothing at {target}", "aeenc up")


def _answering(name: str, target: str, answer: dict[str, str]) -> Iterator[Finding]:
    about = f"{answer['state']} at {target}, release {answer['software']}"
    if answer["state"] != "SERVING" or answer["reason"]:
        yield Finding(name, "note", f"{about}: {answer['reason']}", "see docs/operations.md")
    else:
        yield Finding(name, "ok", about)
    if not neighbours(answer["software"], aeenc.__version__):
        about = f"release {answer['software']} does not work with this {aeenc.__version__}"
        yield Finding(name, "wrong", about, "install releases of one major version, at most one minor version apart")


def _is_away(answer: ServiceReport) -> bool:
    return isinstance(answer, errors.AeencError) and answer.reason == AWAY


def _is_malformed(answer: ServiceReport) -> bool:
    """Whether the address is malformed, so that no service was asked."""
    return isinstance(answer, errors.InvalidArgument)


def _remedy(name: str, error: errors.AeencError) -> str:
    if isinstance(error, errors.Unauthenticated | errors.PermissionDenied):
        return "set AEENC_TOKEN (--token) to the token that the services were started with"
    if _is_malformed(error):
        return ""
    if _is_away(error):
        return "aeenc up starts what is missing; the end of its log says why it ended"
    return f"the log of the {name} says more"


async def _admin(targets: Targets) -> list[Finding]:
    """Tries the admin credential, where one was given: it may read labels."""
    if not targets.admin_token:
        return []
    try:
        async with aeenc.connect_async(**replace(targets, timeout_s=PATIENCE_S).options()) as client:
            await anext(client.registry.list_labels(), None)
    except (errors.Unauthenticated, errors.PermissionDenied) as error:
        remedy = "set AEENC_ADMIN_TOKEN (--admin-token) to that of `aeenc up`"
        return [Finding("admin token", "wrong", error.message, remedy)]
    except errors.AeencError:  # told of the service already
        return []
    return [Finding("admin token", "ok", "the trainer accepts it")]
