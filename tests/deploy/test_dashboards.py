"""Dashboards and alerts as code: each metric and label that they name is one that a running fleet exposes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from support.worlds.light_fleet import LightFleet, light_fleet

__all__ = ["light_fleet"]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTED = {"aeenc_tokens_file_in_force", "aeenc_log_lines_lost"}  # of these alerts speak
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
OF_PROMETHEUS = {"up"}  # its own metric, and the labels that it adds
LABELS_OF_PROMETHEUS = {"instance", "job", "le"}
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}


def rules() -> Iterator[str]:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def panels(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$__rate_interval", "5m")
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield re.sub(r"label_values\((.*), (\w+)\)", r"count by (\2) (\1)", variable["query"])


def expressions() -> list[str]:
    return [*rules(), *(expr for path in DASHBOARDS for expr in panels(json.loads(path.read_text())))]


def metrics_in(expr: str) -> set[str]:
    """The names of an expression that are neither functions nor keywords nor labels."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\"[^\"]*\"|\b(by|without)\s*\([^)]*\)", " ", expr)
    return {name for name in re.findall(r"[a-zA-Z_]\w*(?!\w*\s*\()", bare) if name not in {"and", "or", "unless"}}


def labels_in(expr: str) -> set[str]:
    grouped = [one for listed in re.findall(r"\b(?:by|without)\s*\(([^)]*)\)", expr) for one in listed.split(",")]
    matched = [one for inside in re.findall(r"\{([^}]*)\}", expr) for one in re.findall(r"(\w+)\s*(?:=|!)", inside)]
    return {one.strip() for one in (*grouped, *matched)}


def exposed_at(port: int) -> set[str]:
    """The names of the samples that a service can expose at its metrics port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {family.name + suffix for family in families for suffix in SUFFIXES.get(family.type, [])}


def labels_of(registry: CollectorRegistry) -> dict[str, set[str]]:
    """The labels of each metric, as it is declared."""
    labels = {}
    for name, found in registry._names_to_collectors.items():
        families = [found] if hasattr(found, "_labelnames") else [one for one in found.describe() if one.name in name]
        labels[name] = set(max(families, key=lambda one: len(getattr(one, "name", "")))._labelnames)
    return labels


async def test_no_panel_and_no_rule_names_a_metric_or_a_label_that_is_not_there(light_fleet: LightFleet):
    servers = light_fleet.servers.values()
    exposed = OF_PROMETHEUS.union(*(exposed_at(server.metrics_port or 0) for server in servers))
    labels = {name: found for server in servers for name, found in labels_of(server.metrics).items()}
    for expr in expressions():
        named = metrics_in(expr)
        assert named, f"no metric in {expr}"
        assert named <= exposed, f"{named - exposed} is not exposed: {expr}"
        known = LABELS_OF_PROMETHEUS.union(*(labels.get(name, set()) for name in named))
        assert labels_in(expr) <= known, f"{labels_in(expr) - known} is no label of {named}: {expr}"


def test_each_metric_of_the_table_for_operators_is_on_a_dashboard():
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    told = set(re.findall(r"`(aeenc_[a-z_]+)`", page)) - ALERTED
    drawn = {re.sub(r"_(bucket|sum|count)$", "", name) for expr in expressions() for name in metrics_in(expr)}
    assert told - {"aeenc_sampler_oracle_"} <= drawn


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not on PATH; it is in Debian's package prometheus")
    return found


def test_promtool_accepts_the_rules_and_their_own_tests(promtool: str):
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([promtool, *arguments], cwd=ALERTS.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_query_of_every_panel(promtool: str, tmp_path: Path):
    drawn = [expr for path in DASHBOARDS for expr in panels(json.loads(path.read_text()))]
    records = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(drawn)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "panels.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
