"""Pods of rendered manifests without a cluster: each container's command as a plain process.

    Services ─▶ names become loopback addresses      volumes ─▶ mount paths become folders
    Secrets  ─▶ variables and files                  probes  ─▶ asked as kubelet would

One process stands for all replicas of a workload.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from services.kit.healthcheck import connects, serves
from services.launcher.private_redis import find_redis_server
from tools.chart import CHART, render

SETS = ("defaults", "small", "production", "gpu", "everything")  # of values
ROOT = Path(__file__).resolve().parents[2]
IMAGE = {"/opt/aeenc/sample": ROOT / "data" / "sample"}  # files that the images have
START_S = 480.0  # below the tests' own limit; a trainer traces the first model with all pods beside it
Manifest = dict[str, Any]
Secrets = Mapping[str, Mapping[str, str]]


@cache
def rendered(name: str) -> list[Manifest]:
    """The manifests of a set of deploy/helm/aeenc/examples; the defaults are no values. Kubernetes' schemas hold."""
    values = {} if name == "defaults" else yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text())
    return render(values)


@dataclass(frozen=True)
class Workload:
    """A Deployment or StatefulSet with its one container."""

    manifest: Manifest

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def pod(self) -> Manifest:
        return self.manifest["spec"]["template"]["spec"]

    @property
    def labels(self) -> dict[str, str]:
        return self.manifest["spec"]["template"]["metadata"]["labels"]

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def container(self) -> Manifest:
        [container] = self.pod["containers"]
        return container

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def variables(self) -> list[str]:
        return [variable["name"] for variable in self.container.get("env", [])]

    def environment(self, secrets: Secrets) -> dict[str, str]:
        """Its variables as Kubernetes makes them: secrets looked up, `$(NAME)` of earlier variables expanded."""
        found: dict[str, str] = {}
        for source in self.container.get("envFrom", []):
            found |= secrets[source["secretRef"]["name"]]
        for variable in self.container.get("env", []):
            if "resourceFieldRef" in variable.get("valueFrom", {}):
                _, kind, name = ["", *variable["valueFrom"]["resourceFieldRef"]["resource"].split(".")]
                number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", self.container["resources"][kind][name]).groups()
                found[variable["name"]] = str(int(number) * {"Mi": 1 << 20, "Gi": 1 << 30}[unit])
            elif "valueFrom" in variable:
                reference = variable["valueFrom"]["secretKeyRef"]
                found[variable["name"]] = secrets[reference["name"]][reference["key"]]
            else:
                text = variable["value"]
                found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found.get(m[1], m[0]), text)
        return found


def workloads(manifests: Sequence[Manifest]) -> list[Workload]:
    """What makes pods."""
    return [Workload(one) for one in manifests if one["kind"] in {"Deployment", "StatefulSet"}]


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    """The manifests of a kind."""
    return [one for one in manifests if one["kind"] == kind]


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether labels have all that a selector names."""
    return selector.items() <= labels.items()


def addresses(manifests: Sequence[Manifest]) -> Iterator[tuple[str, list[tuple[Workload, int]]]]:
    """Each `service:port`, and the containers' ports behind it."""
    for service in of_kind(manifests, "Service"):
        behind = [one for one in workloads(manifests) if selects(service["spec"]["selector"], one.labels)]
        for port in service["spec"]["ports"]:
            name = f"{service['metadata']['name']}:{port['port']}"
            yield name, [(one, one.ports[port["targetPort"]]) for one in behind if port["targetPort"] in one.ports]


class Cluster:
    """The pods of manifests as processes, their volumes below `folder`. `extra` are variables by component."""

    def __init__(
        self, folder: Path, manifests: Sequence[Manifest], secrets: Secrets, extra: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.folder, self.secrets, self.extra = folder, secrets, extra
        self.workloads = workloads(manifests)
        self.has_tls = any(variable.endswith("_TLS_CERT") for one in self.workloads for variable in one.variables)
        self.host = "localhost" if self.has_tls else "127.0.0.1"
        self._ports = {(one.name, port): free_port() for one in self.workloads for port in one.ports.values()}
        self._addresses = {
            name: ",".join(f"{self.host}:{self._ports[one.name, port]}" for one, port in behind)
            for name, behind in addresses(manifests)
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def target(self, service: str) -> str:
        """Where a `service:port` of the cluster is here."""
        return self._addresses[service]

    def start(self) -> None:
        """Starts every pod; waits for nothing."""
        for one in self.workloads:
            self.processes[one.name] = self._launch(one)

    def wait_healthy(self) -> None:
        """Waits until every readiness probe succeeds. Raises RuntimeError with a log once any pod has ended."""
        deadline = time.monotonic() + START_S
        for one in self.workloads:
            while not self.answers(one, "readinessProbe"):
                for name, process in self.processes.items():  # an encoder waits for its trainer
                    if process.poll() is not None:
                        raise RuntimeError(f"{name} ended:\n{self.log(name)}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{one.name} is not healthy:\n{self.log(one.name)}")
                time.sleep(0.1)

    def answers(self, one: Workload, probe: str) -> bool:
        """Whether a probe succeeds."""
        asked = one.container[probe]
        if "grpc" in asked:
            return serves(f"{self.host}:{self._ports[one.name, asked['grpc']['port']]}")
        if "tcpSocket" in asked:
            return connects(f"127.0.0.1:{self._ports[one.name, one.ports[asked['tcpSocket']['port']]]}")
        if "httpGet" in asked:
            port = self._ports[one.name, one.ports[asked["httpGet"]["port"]]]
            return http_answers(f"http://127.0.0.1:{port}{asked['httpGet']['path']}")
        command = self._command(one, asked["exec"]["command"])
        return not subprocess.run(command, env=self._environment(one), capture_output=True, check=False).returncode

    def log(self, name: str) -> str:
        """The end of a pod's log."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def end(self) -> dict[str, int]:
        """Sends SIGTERM to all, Redis last, and returns the exit statuses; the deadline is the pods' own."""
        found = {}
        last = [one for one in self.workloads if one.component == "redis"]
        for group in ([one for one in self.workloads if one not in last], last):
            for one in group:
                self.processes[one.name].send_signal(signal.SIGTERM)
            for one in group:
                grace_s = one.pod.get("terminationGracePeriodSeconds", 30)
                found[one.name] = self.processes[one.name].wait(timeout=grace_s)
        return found

    def kill(self) -> None:
        """Ends what still runs."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _launch(self, one: Workload) -> subprocess.Popen[bytes]:
        self._write_volumes(one)
        workplace = self.folder / one.name / "workplace"
        workplace.mkdir(parents=True)
        with (self.folder / f"{one.name}.log").open("wb") as log:
            command = self._command(one, one.container["command"])
            return subprocess.Popen(command, env=self._environment(one), cwd=workplace, stdout=log, stderr=log)

    def _command(self, one: Workload, words: Sequence[str]) -> list[str]:
        own = str(self._ports[one.name, 6379]) if one.component == "redis" else ""
        words = [self._here(one, word) for word in words]
        words = [word.replace("redis-server -", f"redis-server - --port {own} --bind 127.0.0.1") for word in words]
        words = [word.replace("redis-cli", f"redis-cli -p {own}") for word in words]
        programs = {"python": sys.executable, "sh": "sh"}
        beside = str(Path(sys.executable).parent / words[0])
        return [programs.get(words[0], beside), *words[1:]]

    def _environment(self, one: Workload) -> dict[str, str]:
        given = {name: self._here(one, value, name) for name, value in one.environment(self.secrets).items()}
        given |= self.extra.get(one.component, {})
        path = os.pathsep.join([str(Path(find_redis_server()).parent), os.environ["PATH"]])
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AEENC_")}
        return {**clean, "PATH": path, **given}

    def _here(self, one: Workload, text: str, variable: str = "") -> str:
        """A command's word or a variable's value, with what stands here for the cluster's names and paths."""
        if variable.endswith("PORT") and text.isdigit():
            return str(self._ports[one.name, int(text)])
        if variable.endswith("_DEVICE"):
            return "cpu"
        if variable.endswith("_BASE_PRECISION"):
            return "float32"  # float16 is for a GPU
        text = re.sub(r"(?:dns:///)?([a-z0-9-]+:\d+)\b", lambda m: self._addresses.get(m[1], m[0]), text)
        text = re.sub(
            r"\b(0\.0\.0\.0|localhost):(\d+)",
            lambda m: f"{m[1]}:{self._ports.get((one.name, int(m[2])), m[2])}",
            text,
        ).replace("0.0.0.0", "127.0.0.1")
        folders = IMAGE | self._mounts(one)
        paths = "|".join(sorted(map(re.escape, folders), key=len, reverse=True))
        text = re.sub(rf"(?<![\w./-])({paths})(?=[/\s,\"]|$)", lambda m: str(folders[m[1]]), text)
        lost = re.search(r"(?<![\w./-])/(var/lib|etc|data|opt)/\S*", text.replace(str(self.folder), ""))
        assert not lost or str(ROOT) in text, f"{one.name}: {variable} names {lost}, which no volume of the pod has"
        return text

    def _mounts(self, one: Workload) -> dict[str, Path]:
        found = {}
        for mount in one.container.get("volumeMounts", []):
            if mount["mountPath"] in {"/tmp", "/dev/shm"}:
                continue
            claim = self._claims(one).get(mount["name"])
            place = self.folder / "claims" / claim if claim else self.folder / one.name / "volumes" / mount["name"]
            found[mount["mountPath"]] = place
        return found

    def _claims(self, one: Workload) -> dict[str, str]:
        volumes = [volume for volume in one.pod.get("volumes", []) if "persistentVolumeClaim" in volume]
        return {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in volumes}

    def _write_volumes(self, one: Workload) -> None:
        for place in self._mounts(one).values():
            place.mkdir(parents=True, exist_ok=True)
        for volume in one.pod.get("volumes", []):
            if "secret" in volume:
                held = self.secrets[volume["secret"]["secretName"]]
                items = volume["secret"].get("items") or [{"key": key, "path": key} for key in held]
                for item in items:
                    (self.folder / one.name / "volumes" / volume["name"] / item["path"]).write_text(held[item["key"]])


def http_answers(url: str) -> bool:
    """Whether a GET succeeds; no proxy of the environment stands between."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
            return True
    except OSError:
        return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
