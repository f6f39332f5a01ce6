"""docker-compose.yml without an engine: each service's command runs as a plain process with its own environment.

Host names are mapped to loopback with free ports, volumes and files of the image to folders here.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import aeenc
from aeenc.v1 import types_pb2
from services.encoder.settings import EncoderSettings
from services.index.settings import IndexSettings
from services.kit.healthcheck import connects, serves
from services.launcher.private_redis import find_redis_server
from services.launcher.processes import free_port
from services.sampler.settings import SamplerSettings
from services.trainer.settings import TrainerSettings
from support.models.tiny_base_models import write_tiny_base
from tools.settings_doc import client_settings

pytestmark = pytest.mark.timeout(300)  # seven processes start one after the other
ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SECRETS = {"AEENC_TOKEN": "a-token", "AEENC_ADMIN_TOKEN": "an-admin-token"}
FACTS = [
    "a magnet attracts iron",
    "a nail is made of iron",
    "the sun is a star",
    "ice is solid water",
    "a fish can swim",
]
OURS = {name: service for name, service in COMPOSE["services"].items() if name != "redis"}
CLIENTS = ("gateway", "workbench")  # which have tests of their own
SERVICES = {name: service for name, service in OURS.items() if name not in CLIENTS}
ON_CPU = {name: one for name, one in COMPOSE["services"].items() if one.get("profiles", ["cpu"]) == ["cpu"]}


def filled(text: str) -> str:
    """Variables of the compose file, filled in as `docker compose` would."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: SECRETS[match[1]], text)


class Mapping:
    """The stand-ins for the network, the volumes and the image's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports: dict[str, int] = {}
        for name in ON_CPU:
            self.ports[name] = free_port({f"127.0.0.1:{port}" for port in self.ports.values()})
        self.inside = {
            "redis": 6379,
            "encoder": 50051,
            "index": 50052,
            "sampler": 50053,
            "trainer": 50054,
            "gold": 50055,
        }

    def __call__(self, name: str, text: str) -> str:
        text = filled(text).replace("0.0.0.0", "127.0.0.1").replace("/opt/aeenc/sample", str(ROOT / "data" / "sample"))
        text = text.replace("/var/lib/aeenc", str(self.folder / "data"))
        for host, port in self.inside.items():
            text = re.sub(rf"(?:dns:///)?\b{host}:{port}\b", f"127.0.0.1:{self.ports[host]}", text)
        own = self.inside[name]
        return re.sub(rf"127\.0\.0\.1:{own}\b|^{own}$", lambda m: m[0].replace(str(own), str(self.ports[name])), text)


def command_of(service: dict[str, Any]) -> list[str]:
    """What runs in a container: its own command, or that of its image."""
    if "command" in service:
        return list(service["command"])
    image = service["build"]["args"]["SERVICE"]
    lines = dict(re.findall(r"^  (\S+)\) exec (.*) ;;$", (ROOT / "deploy" / "start").read_text(), re.MULTILINE))
    return shlex.split(lines.get(image, lines["*"]).replace("$AEENC_SERVICE", image))


def launch(name: str, service: dict[str, Any], mapping: Mapping) -> subprocess.Popen[bytes]:
    command = [mapping(name, word) for word in command_of(service)]
    environment = {key: mapping(name, value) for key, value in service.get("environment", {}).items()}
    environment = {key: "0" if key.endswith("METRICS_PORT") else value for key, value in environment.items()}
    programs = {"python": [sys.executable], "aeenc": [str(Path(sys.executable).with_name("aeenc"))]}
    programs["redis-server"] = [find_redis_server(), "--port", str(mapping.ports["redis"]), "--bind", "127.0.0.1"]
    if name == "trainer":  # the only thing that is not compose's own: a model that is exported in a second
        environment |= {"AEENC_TRAINER_BASE_MODEL": str(mapping.folder / "base"), "AEENC_TRAINER_MAX_TOKENS": "64"}
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AEENC_")}
    workplace = mapping.folder / name
    workplace.mkdir()
    log = (mapping.folder / f"{name}.log").open("wb")
    return subprocess.Popen(
        [*programs[command[0]], *command[1:]], env={**clean, **environment}, cwd=workplace, stdout=log, stderr=log
    )


def healthy(name: str, mapping: Mapping) -> bool:
    """What the container's own health check finds; that of an image is in `deploy/healthy`."""
    target = f"127.0.0.1:{mapping.ports[name]}"
    return connects(target) if name in {"redis", "gold"} else serves(target)


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mapping, dict[str, subprocess.Popen[bytes]]]]:
    """Everything that `docker compose up` would start on a machine without a GPU, healthy."""
    folder = tmp_path_factory.mktemp("compose")
    write_tiny_base(folder / "base")
    mapping = Mapping(folder)
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, service in ON_CPU.items():
            processes[name] = launch(name, service, mapping)
            needs = list(service.get("depends_on", {}))
            assert set(needs) <= set(processes), "dependencies stand before what depends on them"
            wait_for(needs, mapping, processes)
        wait_for(list(ON_CPU), mapping, processes)
        yield mapping, processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def wait_for(names: list[str], mapping: Mapping, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + 200
    for name in names:
        while not healthy(name, mapping):
            log = (mapping.folder / f"{name}.log").read_text(errors="replace")[-2000:]
            assert processes[name].poll() is None, f"{name} ended:\n{log}"
            assert time.monotonic() < deadline, f"{name} is not healthy:\n{log}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def client(composed: tuple[Mapping, Any]) -> Iterator[aeenc.Client]:
    targets = {name: f"127.0.0.1:{composed[0].ports[name]}" for name in ("encoder", "index", "sampler", "trainer")}
    connected = aeenc.connect(**targets, token="a-token", admin_token="an-admin-token", timeout_s=20)
    yield connected
    connected.close()


@pytest.mark.slow
def test_a_corpus_is_built_and_retrieved_from_through_the_composed_services(client: aeenc.Client):
    client.index.build("five", [types_pb2.Premise(id=f"f{n}", text=text) for n, text in enumerate(FACTS)])
    (hits,) = client.index.retrieve("five", ["a magnet attracts a nail"], k=3)
    assert len(hits) == 3
    assert {hit.text for hit in hits} <= set(FACTS)


@pytest.mark.slow
def test_the_sampler_reaches_the_oracle_and_the_registry_with_their_tokens(client: aeenc.Client):
    run = client.sampler.start_run([("h", FACTS[0])], corpus="five", oracle="gold", k=3)
    ended = client.sampler.wait(run.id)
    assert (ended.state, ended.progress.judgements) == (types_pb2.WORK_STATE_SUCCEEDED, 3), ended.error
    deadline = time.monotonic() + 20  # the label goes once the run has ended
    while (labels := {label.name for label in client.registry.list_labels()}) != {"stable"}:
        assert time.monotonic() < deadline, labels
        time.sleep(0.05)


@pytest.mark.slow
def test_every_command_ends_with_status_0_on_sigterm(composed: tuple[Any, dict[str, Any]], client: aeenc.Client):
    for name in ("gold", "sampler", "index", "encoder", "trainer", "redis"):
        composed[1][name].send_signal(signal.SIGTERM)
        assert composed[1][name].wait(timeout=15) == 0, name


def test_every_variable_is_a_setting_of_its_service():
    fields = {
        c.service: set(c.model_fields) for c in (EncoderSettings, IndexSettings, SamplerSettings, TrainerSettings)
    }
    for name, service in SERVICES.items():
        for key in service["environment"]:
            _, owner, *field = key.lower().split("_")
            assert key in {"OMP_NUM_THREADS", "AEENC_ORACLE_TOKEN"} or "_".join(field) in fields[owner], (name, key)


def test_the_gateway_starts_with_its_variables_and_keeps_no_token(monkeypatch: pytest.MonkeyPatch):
    service = OURS["gateway"]
    for name in [name for name in os.environ if name.startswith("AEENC_")]:
        monkeypatch.delenv(name)
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    settings = runpy.run_path(str(ROOT / "clients" / "gateway" / "aeenc_gateway" / "settings.py"))
    found = settings["GatewaySettings"]()
    own = {f"{found.model_config['env_prefix']}{name.upper()}" for name in found.model_fields_set}
    assert own == set(service["environment"])
    assert (found.token, found.encoder, found.index) == (None, "dns:///encoder:50051", "dns:///index:50052")


def test_the_workbench_has_variables_that_it_knows_and_starts_without_printing_links():
    service = OURS["workbench"]
    known = client_settings("workbench")
    asked = {name.removeprefix("AEENC_WORKBENCH_").lower() for name in service["environment"]}
    assert asked < known
    assert service["environment"]["AEENC_WORKBENCH_TOKEN"].startswith("${AEENC_ADMIN_TOKEN:?"), "its admins publish"
    assert {"sampler", "index", "trainer"} <= asked
    assert "--no-print-links" in command_of(service), "whoever reads the log could sign in"


def test_no_variable_is_overruled_by_a_flag_of_its_image():
    for name, service in OURS.items():
        words = [word[2:].removeprefix("no-") for word in command_of(service) if word.startswith("--")]
        flags = {word.replace("-", "_").upper() for word in words}
        assert not flags & {key.split("_", 2)[-1] for key in service["environment"]}, name


def test_no_port_is_published_beyond_loopback():
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(published) == 8
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_service_that_listens_beyond_loopback_wants_a_token():
    for name, service in SERVICES.items():
        environment = service["environment"]
        others = ("PEER_TOKEN", "ADMIN_TOKEN", "PLAIN_TOKEN")
        wanted = [key for key in environment if key.endswith("_TOKEN") and not key.endswith(others)]
        assert len(wanted) == 1, name
        assert environment[wanted[0]].startswith("${AEENC_TOKEN:?"), f"{name}: no secret in the file, no empty one"
    for name in ("index", "sampler", "trainer"):
        assert SERVICES[name]["environment"][f"AEENC_{name.upper()}_ADMIN_TOKEN"].startswith("${AEENC_ADMIN_TOKEN:?")


def test_encoder_and_trainer_have_a_gpu_profile_that_differs_in_the_image_alone():
    for name in ("encoder", "trainer"):
        cpu, gpu = COMPOSE["services"][name], COMPOSE["services"][f"{name}-gpu"]
        assert (cpu["profiles"], gpu["profiles"]) == (["cpu"], ["gpu"])
        (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]
        assert gpu["build"]["args"] == {**cpu["build"]["args"], "VARIANT": "gpu"}
        for key in ("environment", "volumes", "networks"):
            assert cpu[key] == gpu[key]


def test_every_container_is_bounded_and_writes_to_its_own_volumes_alone():
    for name, service in COMPOSE["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["mem_limit"], name
    writers = {
        volume.split(":")[0]: name
        for name, service in ON_CPU.items()
        for volume in service.get("volumes", [])
        if not volume.endswith(":ro")
    }
    assert set(COMPOSE["volumes"]) == {*writers, "workbench"}
    assert COMPOSE["services"]["encoder"]["volumes"][0].endswith("artifacts:ro"), "it only reads"
    words = COMPOSE["services"]["redis"]["command"]
    limit = words[words.index("--maxmemory") + 1]
    assert (limit, COMPOSE["services"]["redis"]["mem_limit"]) == ("600mb", "1g"), "it refuses before it is ended"


def test_the_dockerfile_installs_each_service_that_compose_builds_with_extras_that_there_are():
    dockerfile = (ROOT / "Dockerfile").read_text()
    choice = re.search(r'RUN (case "\$SERVICE".+?esac;)', dockerfile, re.DOTALL)[1].replace("\\\n", "")  # type: ignore[index]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for arguments in [service["build"]["args"] for service in OURS.values()]:
        chosen = {"VARIANT": "cpu", "EXTRAS": "tracing,objects", **arguments}
        command = ["sh", "-c", f'{choice} echo "$root"']
        root = subprocess.run(command, env=chosen, capture_output=True, text=True, check=True).stdout.strip()
        folder, named = re.fullmatch(r"([./a-z]+)(?:\[(.+)\])?", root).groups()  # type: ignore[union-attr]
        assert (ROOT / folder / "pyproject.toml").is_file()
        assert set((named or "tracing").split(",")) <= set(extras)
    assert re.search(r"^USER aeenc$", dockerfile, re.MULTILINE)


def test_an_image_says_what_it_is_and_which_commit_it_was_built_from():
    dockerfile = (ROOT / "Dockerfile").read_text()
    final = dockerfile[dockerfile.rindex("\nFROM ") :]
    for name in ("title", "description", "licenses", "revision", "created", "base.name"):
        (value,) = re.findall(rf'org\.opencontainers\.image\.{re.escape(name)}="([^"]+)"', final)
        assert set(re.findall(r"\$\{(\w+)\}", value)) <= set(re.findall(r"^ARG (\w+)", final, re.MULTILINE)), name
