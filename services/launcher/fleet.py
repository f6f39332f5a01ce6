"""All services of one machine, under one directory: a private Redis, the four services, a gold oracle, the workbench.

    up -> redis -> trainer -> encoder -> index -> sampler (-> gold) (-> workbench) -> wait until each says SERVING
            |        '-----------'---------'---------'-- addresses, tokens and Redis by AEENC_<SERVICE>_<NAME>
    HOME/ fleet.json lock redis/ artifacts/ state/<service>/ logs/<service>.log

The state survives `down` and `up`, and SIGKILL of any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aeenc import errors
from aeenc.evaluation import splits_in
from aeenc.transport.checks import bare_token
from services.kit.credentials.watched_files import read_secret
from services.kit.healthcheck import connects, serves
from services.launcher import processes
from services.launcher.private_redis import start_private_redis
from services.launcher.processes import LOCALHOST, ProcessId, becomes_free, free_port, reap_later
from services.store.files import atomic_write, try_lock
from services.store.formats import check_format, made_of

FORMAT_VERSION = 1
SERVICES = ("trainer", "encoder", "index", "sampler")  # start order: the trainer exports what the encoder loads
BASE_PORT = 50051
_PEERS = {"index": ("encoder",), "sampler": ("index", "trainer"), "trainer": ("encoder", "index", "sampler")}
_OFFSETS = {"encoder": 0, "index": 1, "sampler": 2, "trainer": 3, "gold": 4, "workbench": 5}
START_S = 180.0
END_S = 20.0
RESTORING = ".restoring"  # among the artifacts, from the beginning of a restore to its end

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """The options of `up`; kept, so that a later `up` needs no flags. Of tokens only a fingerprint is kept."""

    base_port: int = BASE_PORT
    oracles: dict[str, str] = field(default_factory=dict)
    oracle_token_files: dict[str, str] = field(default_factory=dict)
    oracle_credentials: str = ""
    people: dict[str, int] = field(default_factory=dict)
    guideline: str = ""  # what the people of all these queues read
    workbench: bool = False
    gold_trees: str = ""
    gold_split: str = "train"
    redis_url: str = ""
    tokens_file: str = ""  # of named credentials
    credentials: str = ""

    @property
    def optional(self) -> list[str]:
        """What else these options start beside the services."""
        return [name for name, asked in (("gold", self.gold_trees), ("workbench", self.workbench)) if asked]


def fingerprint(*tokens: str) -> str:
    """Returns a hash that tells these tokens from others; empty without any."""
    return hashlib.sha256(" ".join(tokens).encode()).hexdigest()[:16] if tokens else ""


def read_token(file: str) -> str:
    """Reads a token from a file, without white space around it. Raises InvalidArgument, naming the file."""
    try:
        token = read_secret(file)
    except ValueError as error:
        raise errors.InvalidArgument(f"the token's file {error}") from None
    try:
        return bare_token(token)
    except ValueError as error:
        raise errors.InvalidArgument(f"the token in {file} {error}") from None


def running_elsewhere(home: Path) -> list[Path]:
    """Finds the homes of other fleets that this account runs on this machine."""
    found: set[Path] = set()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # of another account, or ended
            stores = re.findall(rb"AEENC_ENCODER_ARTIFACTS_DIR=([^\0]+)", environment.read_bytes())
            found |= {Path(os.fsdecode(store)).parent for store in stores}
    return sorted(one for one in found - {home} if (one / "fleet.json").is_file())


def _check_free(name: str, target: str) -> None:
    if not becomes_free(target):
        raise errors.FailedPrecondition(f"{target} ({name}) is taken by another process; end it or choose --base-port")


class Fleet:
    """The processes of one home directory. `token` and `admin_token`: what callers of the services must send."""

    def __init__(self, home: Path, *, token: str | None = None, admin_token: str | None = None) -> None:
        self.home = home.resolve()
        self._token, self._admin_token = token, admin_token or token
        self._file = self.home / "fleet.json"

    @property
    def artifacts(self) -> Path:
        """The store of checkpoints and generations."""
        return self.home / "artifacts"

    def options(self) -> Options | None:
        """Returns the options of the last `up`; None before the first."""
        record = self._read()
        return made_of(Options, record["options"]) if record else None

    def targets(self) -> dict[str, str]:
        """Returns the address of each service, as of the last `up`."""
        return dict(self._read().get("targets", {}))

    def running(self) -> dict[str, ProcessId]:
        """Returns the processes of the last `up` that still run, by name."""
        found = {name: ProcessId(*pair[:2]) for name, pair in self._read().get("processes", {}).items()}
        return {name: process for name, process in found.items() if process.alive}

    def up(self, options: Options, say: Say = lambda _: None) -> dict[str, str]:
        """Starts what is not running and waits until all serve. Returns the targets.

        Raises FailedPrecondition when a port is taken or a process ends, with the end of its log.
        """
        with self.locked():
            if (self.artifacts / RESTORING).exists():
                raise errors.FailedPrecondition(f"a restore of {self.home} broke off; run it again with --force")
            running, targets = self._make_way(options, say)
            names, url = [*SERVICES, *options.optional], options.redis_url
            for name in ["redis", *names]:
                if name == "redis":
                    url = url or (self.redis_url() if name in running else "")
                    if not options.redis_url and name not in running:
                        say("starting redis")
                        url, running[name] = self._start_redis()
                elif name not in running:
                    say(f"starting {name}")
                    running[name] = self._start(name, options, targets, url)
                self._note(name, options, targets, running, url)
            for name in names:
                self._await_serving(name, running[name], targets[name])
                say(f"{name} serves at {targets[name]}")
        return targets

    def _make_way(self, options: Options, say: Say) -> tuple[dict[str, ProcessId], dict[str, str]]:
        """Ends everything, to start again, when the options have changed. Returns what still runs, and the targets.

        Raises FailedPrecondition, and ends nothing, when a port is taken.
        """
        running, last = self.running(), self.targets()
        ending, running = ({}, running) if self.options() in (None, options) else (running, {})
        released = {last[name] for name in ending if name in last}
        targets = self._choose_targets(options, running, released)
        if ending:
            say("stopping all services to start again with other options")
            self._end(ending)
        for name, target in targets.items():
            if target in released:
                _check_free(name, target)
        return running, targets

    @property
    def credentials(self) -> str:
        """A fingerprint of the tokens; empty without."""
        return fingerprint(self._token or "", self._admin_token) if self._admin_token else ""

    def down(self) -> list[str]:
        """Ends everything, Redis last. Returns the names of what was running."""
        with self.locked():
            running = self.running()
            self._end(running)
            return list(running)

    def _end(self, running: dict[str, ProcessId]) -> None:
        services = [process for name, process in running.items() if name != "redis"]
        processes.end(services, END_S)
        processes.end([process for name, process in running.items() if name == "redis"], END_S)

    def _start_redis(self) -> tuple[str, ProcessId]:
        redis = start_private_redis(self.home / "redis", start_new_session=True)
        reap_later(redis.process)
        identity = ProcessId.of(redis.process.pid)
        assert identity is not None  # it has just answered
        return redis.url, identity

    @contextmanager
    def with_redis(self) -> Iterator[str]:
        """Yields the URL of this home's Redis, which runs as long as the block; nobody changes the fleet meanwhile."""
        with self.locked():
            running, options = self.running(), self.options() or Options()
            if url := options.redis_url or (self.redis_url() if "redis" in running else ""):
                yield url
                return
            url, running["redis"] = self._start_redis()
            try:
                self._write(options, self.targets(), running, url)  # so that a later `up` or `down` knows of it
                yield url
            finally:
                self._end({"redis": running["redis"]})

    def redis_url(self) -> str:
        """Returns the URL of the Redis of a running fleet, or ""."""
        running, options = self.running(), self.options()
        known = "redis" in running or (running and options and options.redis_url)
        return str(self._read().get("redis_url", "")) if known else ""

    def _start(self, name: str, options: Options, targets: dict[str, str], redis_url: str) -> ProcessId:
        log = self._log(name)
        if name == "gold":
            trees = str(Path(options.gold_trees).resolve())
            command = [sys.executable, "-m", "aeenc.cli.main", "oracle", "gold", "--trees", trees]
            command += ["--split", options.gold_split, "--address", targets["gold"]]
            return processes.start(
                command, {"AEENC_ORACLE_TOKEN": self._token or None}, log
            )  # never the user's oracle's
        if name == "workbench":
            command = [sys.executable, "-m", "aeenc_workbench", "--no-print-links", *self._workbench(targets)]
            for service in ("sampler", "index", "trainer"):
                command += [f"--{service}", targets[service]]
            if options.gold_trees and "dev" in splits_in(options.gold_trees):  # these measure what it trains
                command += ["--gold", str(Path(options.gold_trees).resolve())]
            tokens = {"AEENC_WORKBENCH_TOKEN": self._token or None, "AEENC_ADMIN_TOKEN": self._admin_token or None}
            plain = dict.fromkeys(("AEENC_CA", "AEENC_CERT", "AEENC_KEY", "AEENC_TLS"), "")  # no TLS here, ever
            return processes.start(command, {**plain, **tokens}, log)
        settings = self._settings(name, options, targets, redis_url)
        environment = {f"AEENC_{name.upper()}_{key.upper()}": value for key, value in settings.items()}
        if name == "index":
            environment["OMP_NUM_THREADS"] = "1"  # one search thread; OpenMP's threads would compete with the encoder's
        return processes.start([sys.executable, "-m", f"services.{name}"], environment, log)

    def _workbench(self, targets: dict[str, str]) -> list[str]:
        port = targets["workbench"].rpartition(":")[2]
        return ["--host", LOCALHOST, "--port", port, "--state-dir", str(self.home / "state" / "workbench")]

    def sign_in_link(self) -> str:
        """Returns an address at which the user of this machine signs in to the workbench, once.

        Raises FailedPrecondition with the workbench's reason when it makes none.
        """
        command = [sys.executable, "-m", "aeenc_workbench", "--link", *self._workbench(self.targets())]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise errors.FailedPrecondition(f"the workbench makes no link to sign in by: {ended.stderr.strip()}")
        return ended.stdout.split()[-1]

    def _log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _settings(self, name: str, options: Options, targets: dict[str, str], redis_url: str) -> dict[str, str]:
        host, _, port = targets[name].rpartition(":")
        settings = {"host": host, "port": port, "artifacts_dir": str(self.artifacts), "log_file": str(self._log(name))}
        if name != "index":
            settings["redis_url"] = redis_url
        if name in {"encoder", "trainer"}:
            settings["state_dir"] = str(self.home / "state" / name)
        if name == "trainer" and "AEENC_TRAINER_TENSORBOARD_DIR" not in os.environ:
            settings["tensorboard_dir"] = str(self.home / "tensorboard")
        for peer in _PEERS.get(name, ()):
            settings[f"{peer}_target"] = targets[peer]
        if name == "sampler":
            settings["oracles"] = json.dumps(self._oracles(options, targets))
            if options.people:  # else AEENC_SAMPLER_QUEUES applies, if it is set
                read = {"guideline": options.guideline} if options.guideline else {}
                settings["queues"] = json.dumps({name: {"overlap": n, **read} for name, n in options.people.items()})
        if self._token:
            settings |= {"token": self._token, "peer_token": self._token}
        if self._admin_token:
            settings |= {"admin_token": self._admin_token, "peer_admin_token": self._admin_token}
        if options.tokens_file:
            settings["tokens_file"] = options.tokens_file
        return settings

    def _oracles(self, options: Options, targets: dict[str, str]) -> dict[str, dict[str, str]]:
        """Returns the oracles that runs may name: yours, the gold one, and `local` on the fifth port."""
        named = {name: {"target": target} for name, target in options.oracles.items()}
        for name, file in options.oracle_token_files.items():
            named[name]["token"] = read_token(file)
        if "gold" in targets:
            named["gold"] = {"target": targets["gold"], **({"token": self._token} if self._token else {})}
        elif options.base_port:
            named.setdefault("local", {"target": f"{LOCALHOST}:{options.base_port + _OFFSETS['gold']}"})
        return named

    def _choose_targets(
        self, options: Options, running: dict[str, ProcessId], released: Collection[str]
    ) -> dict[str, str]:
        """Chooses the addresses: those of the last `up` if possible, because callers may still use them.

        `released` are free before anything starts.
        """
        last, targets = self.targets(), {}
        for name in [name for name in _OFFSETS if name in {*SERVICES, *options.optional}]:
            if name in running:
                targets[name] = last[name]
            elif options.base_port:
                targets[name] = f"{LOCALHOST}:{options.base_port + _OFFSETS[name]}"
                if targets[name] not in released:
                    _check_free(name, targets[name])
            elif name in last and (last[name] in released or becomes_free(last[name])):
                targets[name] = last[name]
            else:
                targets[name] = f"{LOCALHOST}:{free_port(set(targets.values()))}"
        return targets

    def _await_serving(self, name: str, process: ProcessId, target: str) -> None:
        log = self._log(name)

        def is_serving() -> bool:
            if not process.alive:
                raise errors.FailedPrecondition(f"{name} ended while starting; {log} says:\n{processes.tail(log)}")
            return connects(target) and (name not in SERVICES or serves(target))

        if not processes.comes_true(is_serving, START_S):
            raise errors.Unavailable(f"{name} does not serve after {START_S:.0f} s; {log} says:\n{processes.tail(log)}")

    def _read(self) -> dict[str, Any]:
        """Reads the record of this home. Raises NewerFormat, or FailedPrecondition for one that cannot be read."""
        if not self._file.exists():
            return {}
        try:
            record: dict[str, Any] = json.loads(self._file.read_bytes())
            check_format(record, FORMAT_VERSION, str(self._file))
            made_of(Options, record["options"])
            dict(record["targets"]), [ProcessId(*pair[:2]) for pair in record["processes"].values()]
        except OSError as error:
            raise errors.FailedPrecondition(
                f"{self._file} cannot be read ({error.strerror}); make it readable, or choose another --home"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise errors.FailedPrecondition(
                f"{self._file} cannot be read ({type(error).__name__}: {error}); restore it, or choose another --home"
            ) from error
        return record

    def _write(self, options: Options, targets: dict[str, str], running: dict[str, ProcessId], redis_url: str) -> None:
        last = self._read()  # what a later minor release has added stays
        record = {
            **last,
            "format_version": FORMAT_VERSION,
            "targets": targets,
            "redis_url": redis_url,
            "options": {**last.get("options", {}), **asdict(options)},
            "processes": {name: [process.pid, process.started] for name, process in running.items()},
        }
        atomic_write(self._file, json.dumps(record, indent=1).encode(), mode=0o600)  # redis_url may hold a password

    def _note(
        self, name: str, options: Options, targets: dict[str, str], running: dict[str, ProcessId], redis_url: str
    ) -> None:
        """Notes what runs now. Where that cannot be written, it ends the process `name`: nobody would know of it."""
        try:
            self._write(options, targets, running, redis_url)
        except OSError as error:
            if name not in self.running():
                processes.end([running[name]], END_S)
            raise errors.Unavailable(
                f"{self._file} cannot be written ({error.strerror}), so {name} was not started; free space or correct "
                "its permissions, then `aeenc up` again"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Allows one `up`, `down`, `backup` or `restore` of a home at a time."""
        path = self.home / "lock"
        is_read_only = path.exists() and not os.access(path, os.W_OK)  # what runs there can be ended all the same
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            lock = path.open("r" if is_read_only else "w")
        except OSError as error:
            raise errors.FailedPrecondition(
                f"{path} cannot be opened ({error.strerror}); correct its permissions, or choose another --home"
            ) from error
        with lock:
            if not try_lock(lock):
                raise errors.FailedPrecondition(
                    f"another `aeenc up`, `down`, `backup` or `restore` works on {self.home}; wait"
                )
            yield
