"""Settings of a service: typed, with laptop defaults, from `AEENC_<SERVICE>_<FIELD>` and from flags.

`__main__` reads them once and passes them on as plain arguments; nothing else reads the environment. A wrong value
stops the start with its name.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    Field,
    FilePath,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from aeenc.adapters.settings import read_settings
from aeenc.transport.channel import PATIENT
from aeenc.transport.checks import bare_token
from services.kit.credentials.watched_files import read_secret

T = TypeVar("T", bound=str | SecretStr)
# What Kubernetes sets for a service `aeenc-encoder`: AEENC_ENCODER_SERVICE_HOST, AEENC_ENCODER_PORT_50051_TCP …
_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)$")


def _not_empty(secret: T) -> T:
    """Refuses a secret without a visible character: it would admit whoever sends none."""
    if not (secret.get_secret_value() if isinstance(secret, SecretStr) else secret).strip():
        raise ValueError("is empty; give a secret, or leave the setting out")
    return secret


COUNTED = 2**31 - 1  # most that grpc and our messages count to
GRPC_S = COUNTED // 1000  # grpc counts milliseconds
MOST_BYTES, MOST_S = 2**62, 10**9
TOKENS = ("token", "admin_token", "peer_token", "peer_admin_token")
Secret = Annotated[str, AfterValidator(_not_empty)]
Token = Annotated[Secret, AfterValidator(bare_token)]  # one that callers can send
HiddenSecret = Annotated[SecretStr, AfterValidator(_not_empty)]


def usable_cores(root: Path = Path("/")) -> int:
    """Counts the cores that this process may use: those of its affinity, and no more than its cgroup's quota.

    A quota is rounded down, to at least 1: threads beyond it would be throttled together. `root` is the file system.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = _limits(root, "cpu", ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    return max(1, min([cores, *(quota // period for quota, period in quotas)]))


def usable_memory_bytes(root: Path = Path("/")) -> int:
    """Returns the memory of this machine, or the limit of a cgroup of this process where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = _limits(root, "memory", ("memory.max",), ("memory.limit_in_bytes",))
    return min([machine, *(limit for limit, *_ in limits)])


def _limits(root: Path, controller: str, *files: Sequence[str]) -> Iterator[list[int]]:
    """Yields the limits of this process's cgroups and of those above them; the `files` are of version 2, or 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / controllers
        group = mounted if ".." in path else mounted / path.lstrip("/")
        for folder, names in product((group, *group.parents), files):
            if not folder.is_relative_to(mounted):
                continue
            with contextlib.suppress(OSError, ValueError):  # such as "max"
                limit = [int(number) for name in names for number in (folder / name).read_text().split()]
                if limit and min(limit) > 0:
                    yield limit


class ServiceSettings(BaseSettings):
    """Settings that all services have. A service subclasses it with its own fields, `service` and a default port."""

    model_config = SettingsConfigDict(  # no error shows a secret
        extra="forbid", frozen=True, env_nested_delimiter="__", hide_input_in_errors=True
    )
    service: ClassVar[str] = "service"

    host: str = Field("127.0.0.1", description="address to listen on; `unix:` targets are given as the whole target")
    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    metrics_port: int | None = Field(None, ge=0, le=65535, description="port of the Prometheus metrics; none: off")
    token: Token | None = Field(None, description="bearer token that callers must send")
    admin_token: Token | None = Field(None, description="bearer token for the admin services; default: the token")
    token_file: FilePath | None = Field(None, description="file with `TOKEN`")
    admin_token_file: FilePath | None = Field(None, description="file with `ADMIN_TOKEN`")
    tokens_file: Path | None = Field(None, description="named credentials (TOML), beside the tokens")
    allow_insecure: bool = Field(False, description="listen beyond loopback although no token is set")
    tls_cert: Path | None = Field(None, description="certificate chain (PEM) of this server")
    tls_key: Path | None = Field(None, description="private key (PEM) of this server")
    tls_client_ca: Path | None = Field(None, description="CA (PEM) that client certificates must be signed by")
    ping_s: float = Field(
        20.0,
        ge=0.1,
        le=GRPC_S,
        description="seconds without a word after which a caller is pinged, and then without an answer given up",
    )
    connection_age_s: float = Field(
        30.0,
        ge=0,
        le=GRPC_S,
        description="seconds, give or take a tenth, after which callers connect again, and find new replicas; 0: never",
    )
    connection_grace_s: float = Field(
        3600.0,
        ge=0,
        le=GRPC_S,
        description="seconds that calls on such an old connection may still take; 0: without limit",
    )
    drain_delay_s: float = Field(
        0.0, ge=0, description="seconds after SIGTERM in which new calls are still taken, while health says NOT_SERVING"
    )
    drain_s: float = Field(10.0, ge=0, description="seconds that calls in flight may take after that")
    log_format: Literal["console", "json"] = Field("console", description="for a terminal, or one JSON object a line")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_file: Path | None = Field(None, description="file for the log in place of stderr")
    log_file_bytes: int = Field(
        16 * 1024 * 1024, ge=4096, description="size at which another log file is begun; three are kept beside it"
    )
    trace_endpoint: str = Field("", description="receiver of spans (OTLP over gRPC, http://host:4317); none: off")
    trace_share: float = Field(
        1.0, ge=0, le=1, description="part of the traces that begin here; a caller's trace follows the caller"
    )
    instance: str = Field("", description="name of this process in logs and rollouts; default: service-host-pid")
    max_connections: int = Field(512, ge=1, description="most connections of callers at once")
    max_streams: int = Field(4000, ge=1, description="most streams at once, a quarter of them of one caller")
    max_request_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="most bytes of requests in work at once, 16 KiB more for each call"
    )
    message_bytes: int = Field(4 * 1024 * 1024, ge=1024, le=COUNTED, description="largest message accepted, in bytes")
    max_items: int = Field(1024, ge=1, description="most items in one unary call")
    text_bytes: int = Field(16 * 1024, ge=1, le=COUNTED, description="largest text, in bytes of UTF-8")
    artifacts_dir: Path = Field(Path(".aeenc/artifacts"), description="store of checkpoints and generations")
    artifacts_url: str = Field(
        "", description="object store that holds the artifacts (s3://…, gs://…, abfs://…); the directory is its cache"
    )
    artifacts_cache_bytes: int = Field(
        32 * 1024**3, ge=0, description="size of the directory in front of artifacts_url; 0: without limit"
    )
    peer_token: Token | None = Field(None, description="bearer token that this service sends to the others")
    peer_admin_token: Token | None = Field(None, description="token sent to admin services; default: peer_token")
    peer_token_file: FilePath | None = Field(None, description="file with `PEER_TOKEN`")
    peer_admin_token_file: FilePath | None = Field(None, description="file with `PEER_ADMIN_TOKEN`")
    plain_token: bool = Field(
        False, description="send tokens to other hosts without TLS, too: in a network that you trust"
    )
    peer_ca: FilePath | None = Field(None, description="CA (PEM) of the other services; none: plain connections")
    peer_cert: FilePath | None = Field(None, description="client certificate (PEM) that the other services ask for")
    peer_key: FilePath | None = Field(None, description="private key (PEM) of `PEER_CERT`")

    @model_validator(mode="before")
    @classmethod
    def _tokens_of_files(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Reads the tokens that stand in files."""
        files = {name: given[f"{name}_file"] for name in TOKENS if given.get(f"{name}_file")}
        if twice := [name.upper() for name in files if given.get(name) is not None]:
            raise ValueError(f"{twice[0]} and {twice[0]}_FILE exclude each other; give one")
        return {**given, **{name: read_secret(file) for name, file in files.items()}}

    @field_validator("*", mode="after")
    @classmethod
    def _countable(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses numbers that clocks, counters or messages do not hold, infinity among them."""
        most = (
            MOST_S if isinstance(value, float) else MOST_BYTES if str(info.field_name).endswith("_bytes") else COUNTED
        )
        if isinstance(value, int | float) and value > most:
            raise ValueError(f"is {value:,}; give at most {most:,}")
        return value

    @field_validator("host", mode="after")
    @classmethod
    def _without_brackets(cls, value: str) -> str:
        return value[1:-1] if value.startswith("[") and value.endswith("]") else value  # as it stands in a URL

    @field_validator("instance", mode="after")
    @classmethod
    def _default_instance(cls, value: str) -> str:
        return value or f"{cls.service}-{socket.gethostname()}-{os.getpid()}"

    @model_validator(mode="after")
    def _whole_peer_identity(self) -> Self:
        is_half = (self.peer_cert is None) != (self.peer_key is None)
        if is_half or (self.peer_cert is not None and self.peer_ca is None):
            raise ValueError("PEER_CERT and PEER_KEY belong together and need PEER_CA; give all, or PEER_CA alone")
        return self

    @property
    def address(self) -> str:
        """The address to bind."""
        return self.address_at(self.port)

    def address_at(self, port: int) -> str:
        """Returns the address to bind with another port, such as the one that 0 became."""
        if self.host.startswith("unix:"):
            return self.host
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def worker_processes(self) -> int:
        """How many processes serve on the port (`services.kit.workers`)."""
        return 1

    def peer(self, *, admin: bool = False) -> dict[str, Any]:
        """Options of `aeenc.Channel` for calls to other services; they wait for one that restarts."""
        token = (self.peer_admin_token or self.peer_token) if admin else self.peer_token
        identity = {"ca": self.peer_ca, "cert": self.peer_cert, "key": self.peer_key}
        return {"token": token, **identity, "plain_token": self.plain_token, "retry": PATIENT}

    def logging(self) -> dict[str, Any]:
        """Arguments of `services.kit.logs.configure`."""
        names = {"log_format", "log_level", "instance", "log_file", "log_file_bytes"}
        return {"service": self.service, **self.model_dump(include=names)}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over flags, flags over the environment; there is no other source."""
        del settings_cls, dotenv_settings, file_secret_settings
        return init_settings, env_settings

    @classmethod
    def from_command_line(cls, arguments: list[str] | None = None) -> Self:
        """Reads flags (`--port 50051`) and the environment. A wrong value ends the process: its name, status 2."""
        settings = read_settings(cls, arguments)
        for line in cls._misspelt():
            sys.stderr.write(f"{line}\n")
        return settings

    @classmethod
    def _misspelt(cls) -> Iterator[str]:
        """Names variables with this service's prefix that are no setting: they may belong to another release."""
        prefix = cls.model_config.get("env_prefix", "")
        names = [f"{prefix}{name.upper()}" for name in cls.model_fields]
        for given in sorted(name for name in os.environ if name.startswith(prefix) and prefix):
            if given.split("__")[0] in names or _SERVICE_LINK.search(given):
                continue
            near = difflib.get_close_matches(given, names, 1)
            yield f"{given} is not a setting and is ignored" + (f"; did you mean {near[0]}?" if near else "")


class RedisSettings(ServiceSettings):
    """Settings of a service that keeps records in Redis."""

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="where records are kept: `redis://`, by TLS `rediss://`, `unix://`, or by Sentinel "
        "`redis+sentinel://host:port,host:port/master/0`, with TLS `rediss+sentinel://`",
    )
    redis_password: HiddenSecret | None = Field(None, description="password of the user that REDIS_URL names")
    redis_password_file: FilePath | None = Field(
        None, description="file with that password, read again for each connection"
    )
    redis_sentinel_password: HiddenSecret | None = Field(None, description="password of the Sentinels")
    redis_ca: FilePath | None = Field(None, description="CA (PEM) of Redis and Sentinel; none: those of the system")
    redis_cert: FilePath | None = Field(None, description="client certificate (PEM) that they expect")
    redis_key: FilePath | None = Field(None, description="private key (PEM) of `REDIS_CERT`")
    redis_replicas: int = Field(
        0, ge=0, description="replicas that must have a write before it is acknowledged; 0: none"
    )
    redis_replicas_s: float = Field(
        2.0, gt=0, le=4, description="seconds that they may take; then the call fails with UNAVAILABLE"
    )
    namespace: str = Field("default", description="keeps deployments apart that share a Redis")

    @field_validator("redis_url", mode="after")
    @classmethod
    def _no_empty_password(cls, url: str) -> str:
        password = urlsplit(url).password
        if not url.strip() or (password is not None and not unquote(password).strip()):
            raise ValueError("is empty or has an empty password; give `redis://user:password@host`, or no `:password`")
        return url

    @field_validator("redis_password_file", mode="after")
    @classmethod
    def _password_in_file(cls, path: Path | None) -> Path | None:
        if path is not None:
            read_secret(path)
        return path

    @model_validator(mode="after")
    def _whole_redis_identity(self) -> Self:
        if (self.redis_cert is None) != (self.redis_key is None):
            raise ValueError("REDIS_CERT and REDIS_KEY belong together; give both or neither")
        if self.redis_password is not None and self.redis_password_file is not None:
            raise ValueError("REDIS_PASSWORD and REDIS_PASSWORD_FILE exclude each other; give one")
        return self

    def redis(self) -> dict[str, Any]:
        """Options of `services.store.redis.connect` beside the URL."""
        given = {name.removeprefix("redis_"): value for name, value in self if name.startswith("redis_")}
        del given["url"]
        return {name: one.get_secret_value() if isinstance(one, SecretStr) else one for name, one in given.items()}
