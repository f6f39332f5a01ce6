"""The values of the Helm chart beside their schema, without Helm; `make test-chart` renders them."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "aeenc"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
OTHER_PODS = ("index", "sampler", "trainer", "gold", "gateway", "workbench")
KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def offences(value: Any, schema: dict[str, Any], path: str = "values") -> Iterator[str]:
    """What of a value its schema refuses, by the keywords that say which names and kinds there are."""
    while "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].removeprefix("#/definitions/")]
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if "type" in schema and (
        not isinstance(value, KINDS[schema["type"]]) or (isinstance(value, bool) != (schema["type"] == "boolean"))
    ):
        yield f"{path}: {value!r} is no {schema['type']}"
    elif isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    elif isinstance(value, dict):
        others = schema.get("additionalProperties", {})
        for name, one in value.items():
            yield from offences(name, schema.get("propertyNames", {}), f"{path}.{name}")
            known = schema.get("properties", {}).get(name, others)
            if known is False:
                yield f"{path}.{name}: there is no such value"
            elif known is not True:
                yield from offences(one, known, f"{path}.{name}")


@pytest.mark.parametrize(
    ("password", "starts"),
    [
        *((secret, False) for secret in ("", "  ", "\n", 'a"b', "a\\b", "a b")),
        *((one, True) for one in ("a1B2", "a-p_$w")),
    ],
)
def test_the_redis_of_the_chart_has_a_password_and_a_bound_below_its_pods_memory_or_does_not_start(
    tmp_path: Path, password: str, starts: bool
):
    template = (CHART / "templates" / "redis.yaml").read_text()
    script = textwrap.dedent(template.partition("- -c\n            - |\n")[2].partition("          env:\n")[0])
    (tmp_path / "redis-server").write_text('#!/bin/sh\necho "$@" >&2\ncat\n')
    (tmp_path / "redis-server").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "REDIS_PASSWORD": password, "MEMORY_BYTES": "1000"}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == starts
    assert not starts or "--maxmemory 600 --maxmemory-policy noeviction" in done.stderr
    assert done.stdout == (f'requirepass "{password}"\n' if starts else "")


def test_an_encoder_cannot_write_the_artifacts_and_no_scratch_space_of_a_pod_is_without_a_bound():
    templates = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}
    mount = '/var/lib/aeenc/artifacts{{ if eq .component "encoder" }}, readOnly: true{{ end }}}'
    assert mount in templates["_pod.tpl"]
    for name, template in templates.items():
        assert all("sizeLimit: " in one.partition("}")[0] for one in template.split("emptyDir: ")[1:]), name
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    of_pods = [*values["encoder"]["pools"].values(), *(values[name] for name in OTHER_PODS)]
    for bounds in (one["resources"][kind] for one in of_pods for kind in ("requests", "limits")):
        assert "ephemeral-storage" in bounds


@pytest.mark.parametrize("file", [CHART / "values.yaml", *EXAMPLES], ids=lambda path: path.stem)
def test_the_values_keep_their_schema(file: Path):
    assert not list(offences(yaml.safe_load(file.read_text()), SCHEMA))


def test_a_setting_that_no_service_has_is_refused_by_name():
    wrong = {"encoder": {"settings": {"WORKERZ": 2}, "pools": {"cpu": {"enabled": "yes"}}}, "encodr": {}}
    found = [one.split(": ")[0] for one in offences(wrong, SCHEMA)]
    assert found == ["values.encoder.settings.WORKERZ", "values.encoder.pools.cpu.enabled", "values.encodr"]


def test_what_the_chart_shows_in_grafana_and_prometheus_is_what_deploy_has():
    for name, original in {"alerts.yml": "prometheus/alerts.yml", "aeenc.json": "grafana/aeenc.json"}.items():
        link = CHART / "files" / name
        assert link.is_symlink()
        assert link.resolve() == (ROOT / "deploy" / original).resolve()
        assert link.read_text()
