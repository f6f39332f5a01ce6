"""What the chart renders, and that its parts name each other correctly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.encoder.batching.admission import CPU_QUEUED_TOKENS, GPU_QUEUED_TOKENS
from services.encoder.settings import EncoderSettings
from services.index.settings import IndexSettings
from services.sampler.settings import SamplerSettings
from services.trainer.settings import TrainerSettings
from support.chart_pods import SETS, Manifest, Workload, addresses, of_kind, rendered, selects, workloads
from tools.chart import CHART, ChartError, render
from tools.settings_doc import client_settings

pytestmark = [pytest.mark.chart, pytest.mark.timeout(300)]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SECRET = {"name": "s", "key": "k"}
SERVICES = (EncoderSettings, IndexSettings, SamplerSettings, TrainerSettings)
SETTINGS = {f"AEENC_{one.service.upper()}_{field.upper()}" for one in SERVICES for field in one.model_fields}
SETTINGS |= {
    f"AEENC_{name.upper()}_{one.upper()}" for name in ("gateway", "workbench") for one in client_settings(name)
}


def test_every_variable_is_a_setting_of_its_service_and_stands_there_once(manifests: list[Manifest]):
    for one in workloads(manifests):
        names = one.variables
        assert len(names) == len(set(names)), one.name
        ours = {name for name in names if name.startswith("AEENC_")} - {"AEENC_ORACLE_TOKEN"}
        assert ours <= SETTINGS, f"{one.name}: {ours - SETTINGS}"
        assert all(name.startswith(f"AEENC_{one.component.upper()}_") for name in ours), one.name


def test_a_service_starts_from_its_variables_alone(manifests: list[Manifest]):
    """Beside the names, their values: what the settings classes refuse stops this."""
    for one in workloads(manifests):
        for kind in SERVICES:
            if kind.service == one.component:
                prefix = f"AEENC_{kind.service.upper()}_"
                plain = {
                    variable["name"].removeprefix(prefix).lower(): variable["value"]
                    for variable in one.container["env"]
                    if variable["name"].startswith(prefix) and "value" in variable
                }
                files = {name for name in plain if re.fullmatch("(redis|peer)_(ca|cert|key)", name)}
                values = {name: as_value(text) for name, text in plain.items() if name not in files | {"oracles"}}
                kind(**values)


def as_value(text: str) -> Any:
    return json.loads(text) if text.startswith(("{", "[")) else text


def test_no_secret_stands_in_a_manifest(manifests: list[Manifest]):
    assert not of_kind(manifests, "Secret")
    for one in workloads(manifests):
        for variable in one.container.get("env", []):
            if re.search("(?<!PLAIN_)TOKEN$|PASSWORD$|AUTH$", variable["name"]):
                assert "secretKeyRef" in variable["valueFrom"], (one.name, variable["name"])
        oracles = [v["value"] for v in one.container["env"] if v["name"] == "AEENC_SAMPLER_ORACLES"]
        for oracle in json.loads(oracles[0]).values() if oracles else []:
            assert re.fullmatch(r"\$\(ORACLE_TOKEN_\w+\)", oracle["token"])


def test_no_pod_may_more_than_it_needs(manifests: list[Manifest]):
    for one in workloads(manifests):
        pod, container = one.pod["securityContext"], one.container["securityContext"]
        assert (pod["runAsNonRoot"], pod["seccompProfile"]) == (True, {"type": "RuntimeDefault"}), one.name
        assert container == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one.pod["automountServiceAccountToken"] is False


def test_a_pod_has_time_to_finish_its_calls(manifests: list[Manifest]):
    for one in workloads(manifests):
        if one.component in {"encoder", "index", "sampler", "trainer"}:
            drain_s = float(plain_environment(one)[f"AEENC_{one.component.upper()}_DRAIN_S"])
            asleep_s = one.container["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert one.pod["terminationGracePeriodSeconds"] > drain_s + asleep_s >= 15


def plain_environment(one: Workload) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in one.container["env"]}


def targets_of(one: Workload) -> set[str]:
    """The addresses that a pod's variables name."""
    return {
        found
        for text in plain_environment(one).values()
        for found in re.findall(r"(?<![\w.-])[a-z0-9-]+:\d{4,5}\b", text)
    }


def test_every_address_is_a_service_with_pods_behind_it(manifests: list[Manifest]):
    behind = dict(addresses(manifests))
    assert all(pods for pods in behind.values()), behind
    outside = {"my-oracle:50055"}  # of the examples
    for one in workloads(manifests):
        assert targets_of(one) - outside <= set(behind), one.name
        assert one.component not in {"index", "sampler", "trainer"} or targets_of(one), one.name


def test_policies_admit_the_calls_that_the_services_make_and_no_others(manifests: list[Manifest]):
    behind = dict(addresses(manifests))
    calls = {
        (caller.component, called.component, port)
        for caller in workloads(manifests)
        for target in targets_of(caller) & set(behind)
        for called, port in behind[target]
    }
    components = {one.component: one.labels for one in workloads(manifests)}
    admitted = {
        (caller, called, port["port"])
        for called, labels in components.items()
        for policy in of_kind(manifests, "NetworkPolicy")
        if policy["spec"]["policyTypes"] == ["Ingress"]
        and selects(policy["spec"]["podSelector"]["matchLabels"], labels)
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
        for peer in rule["from"]
        for caller, theirs in components.items()
        if "podSelector" in peer and selects(peer["podSelector"]["matchLabels"], theirs)
    }
    assert calls == admitted
    covered = {
        component
        for component, labels in components.items()
        for policy in of_kind(manifests, "NetworkPolicy")
        if "Ingress" in policy["spec"]["policyTypes"] and selects(policy["spec"]["podSelector"]["matchLabels"], labels)
    }
    assert covered == set(components), "without a policy a pod admits everybody"


def test_budgets_select_the_pods_of_one_component(manifests: list[Manifest]):
    budgets = of_kind(manifests, "PodDisruptionBudget")
    for budget in budgets:
        selector = budget["spec"]["selector"]["matchLabels"]
        assert len({one.component for one in workloads(manifests) if selects(selector, one.labels)}) == 1
    covered = {one.component for one in workloads(manifests)} if budgets else set()
    assert {budget["metadata"]["labels"]["app.kubernetes.io/component"] for budget in budgets} == covered


def scaled(manifests: list[Manifest]) -> list[Manifest]:
    return [*of_kind(manifests, "ScaledObject"), *of_kind(manifests, "HorizontalPodAutoscaler")]


def test_an_autoscaler_alone_says_how_many_encoders_there_are(manifests: list[Manifest]):
    scaled_names = {one["spec"]["scaleTargetRef"]["name"] for one in scaled(manifests)}
    for one in workloads(manifests):
        assert ("replicas" in one.manifest["spec"]) == (one.name not in scaled_names), one.name
    assert scaled_names <= {one.name for one in workloads(manifests)}


def test_encoders_are_scaled_by_their_queue_over_their_capacity():
    metrics = (Path(__file__).resolve().parents[2] / "services" / "encoder" / "metrics.py").read_text()
    seen = []
    for name in ("production", "gpu"):
        manifests = rendered(name)
        [scaler] = scaled(manifests)
        [encoder] = [one for one in workloads(manifests) if one.name == scaler["spec"]["scaleTargetRef"]["name"]]
        capacity = int(plain_environment(encoder)["AEENC_ENCODER_QUEUED_TOKENS"])
        seen.append(scaler["kind"])
        if scaler["kind"] == "ScaledObject":
            [trigger] = scaler["spec"]["triggers"]
            found = re.fullmatch(r"sum\((\w+)\{(.*)\}\) / (\d+)", trigger["metadata"]["query"])
            assert found is not None
            assert (int(found[3]), trigger["metadata"]["threshold"]) == (capacity, "0.25")
            assert re.findall(r'pod=~"(.*)"', found[2]) == [f"{encoder.name}-.*"]
            metric = found[1]
        else:
            [pods] = [one["pods"] for one in scaler["spec"]["metrics"]]
            assert int(pods["target"]["averageValue"]) == capacity // 4
            metric = pods["metric"]["name"]
        assert f'"{metric}"' in metrics
    assert seen == ["ScaledObject", "HorizontalPodAutoscaler"]


def test_a_pool_has_the_queue_of_its_device_or_its_own():
    pools = {
        "cpu": {"enabled": True},
        "a100": {"enabled": True, "gpus": 1},
        "small": {"enabled": True, "gpus": 1, "queuedTokens": 65_536},
    }
    encoders = [one for one in workloads(render({"encoder": {"pools": pools}})) if one.component == "encoder"]
    queues = {one.name.rpartition("-")[2]: plain_environment(one)["AEENC_ENCODER_QUEUED_TOKENS"] for one in encoders}
    assert queues == {"cpu": str(CPU_QUEUED_TOKENS), "a100": str(GPU_QUEUED_TOKENS), "small": "65536"}


def test_gpus_are_asked_for_where_the_service_wants_cuda():
    for one in workloads(rendered("gpu")):
        limits = one.container["resources"]["limits"]
        wants = plain_environment(one).get(f"AEENC_{one.component.upper()}_DEVICE") == "cuda"
        assert wants == ("nvidia.com/gpu" in limits) == one.container["image"].endswith("-gpu"), one.name
        assert wants == ("nodeSelector" in one.pod)
    [trainer] = [one for one in workloads(rendered("gpu")) if one.component == "trainer"]
    assert plain_environment(trainer)["AEENC_TRAINER_PROCESSES"] == "2"
    [index] = [one for one in workloads(render({"index": {"gpus": 1}})) if one.component == "index"]
    assert plain_environment(index)["AEENC_INDEX_DEVICE"] == "cuda"
    assert index.container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert index.container["image"].endswith("-gpu")


def test_prometheus_finds_every_service_under_the_job_that_the_alerts_name():
    manifests = rendered("production")
    monitors = of_kind(manifests, "ServiceMonitor")
    jobs = set()
    for monitor in monitors:
        [endpoint] = monitor["spec"]["endpoints"]
        selector = monitor["spec"]["selector"]["matchLabels"]
        [service] = [s for s in of_kind(manifests, "Service") if selects(selector, s["metadata"]["labels"])]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        jobs |= {one["replacement"] for one in endpoint["relabelings"] if one["targetLabel"] == "job"}
    assert jobs == {"aeenc-encoder", "aeenc-index", "aeenc-sampler", "aeenc-trainer"}
    [rules] = of_kind(manifests, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    [dashboards] = [one for one in of_kind(manifests, "ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]
    assert dashboards["data"]["aeenc.json"] == (DEPLOY / "grafana" / "aeenc.json").read_text()


def test_later_settings_win_even_with_0_and_null_takes_one_away():
    pools = {"cpu": {"enabled": True, "settings": {"BATCH_ITEMS": 0, "LOAD_S": None}}}
    given = {
        "settings": {"LOG_FORMAT": "console"},
        "encoder": {"settings": {"BATCH_ITEMS": 32, "LOAD_S": 9}, "pools": pools},
    }
    [encoder] = [one for one in workloads(render(given)) if one.component == "encoder"]
    found = plain_environment(encoder)
    assert (found["AEENC_ENCODER_BATCH_ITEMS"], found["AEENC_ENCODER_LOG_FORMAT"]) == ("0", "console")
    assert "AEENC_ENCODER_LOAD_S" not in found


def test_where_client_certificates_are_asked_for_all_that_call_and_probes_show_one():
    tls = {"secretName": "aeenc-tls", "clientCertificates": True}
    web = {"gateway": {"enabled": True}, "workbench": {"enabled": True, "url": "https://annotate.example.com"}}
    for one in workloads(render({"tls": tls, **web})):
        found = plain_environment(one)
        prefix = f"AEENC_{one.component.upper()}_"
        if one.component in {"encoder", "index", "sampler", "trainer"}:
            assert found[f"{prefix}TLS_CLIENT_CA"] == "/etc/aeenc/tls/ca.crt"
            assert {"--ca", "--cert", "--key"} < set(one.container["readinessProbe"]["exec"]["command"])
        callers = {"index": "PEER_", "sampler": "PEER_", "trainer": "PEER_", "gateway": "", "workbench": ""}
        own = callers.get(one.component)
        if own is not None:
            shown = [found[f"{prefix}{own}{name}"] for name in ("CERT", "KEY")]
            assert shown == ["/etc/aeenc/tls/tls.crt", "/etc/aeenc/tls/tls.key"]


def test_not_everybody_reads_what_is_measured():
    policies = of_kind(render({}), "NetworkPolicy")
    metrics = [
        rule["from"] for one in policies for rule in one["spec"]["ingress"] if 9050 < rule["ports"][0]["port"] < 9060
    ]
    assert metrics == [[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]] * 4


def test_a_list_without_peers_admits_nobody_where_an_empty_from_would_admit_everybody():
    web = {"gateway": {"enabled": True}, "workbench": {"enabled": True, "url": "https://annotate.example.com"}}
    nobody = {"networkPolicy": {"clients": [], "web": [], "metrics": []}}
    policies = of_kind(render({**web, **nobody}), "NetworkPolicy")
    rules = {one["metadata"]["name"]: one["spec"].get("ingress") or [] for one in policies}
    assert all(rule["from"] for found in rules.values() for rule in found)
    assert [name for name, found in rules.items() if not found] == ["prod-aeenc-gateway", "prod-aeenc-workbench"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"encoder": {"settings": {"WORKERZ": 2}}}, "WORKERZ"),
        ({"workbench": {"settings": {"SIGN_OUT_EVERYBODY": True}}}, "SIGN_OUT_EVERYBODY"),
        ({"sampler": {"queues": {"team": {"overlaps": 2}}}}, "overlaps"),
        ({"trainer": {"settings": {"TOKEN": "x"}}}, "TOKEN"),
        ({"encodr": {}}, "encodr"),
        ({"redis": {"bundled": {"enabled": False}}}, "redis.external.urlSecret.name"),
        ({"workbench": {"enabled": True}}, "workbench.url"),
        (
            {"settings": {"LOG_LEVEL": "debug"}, "index": {"secretSettings": {"LOG_LEVEL": SECRET}}},
            "AEENC_INDEX_LOG_LEVEL stands twice in index",
        ),
        ({"trainer": {"secretSettings": {"REDIS_URL": SECRET}}}, "REDIS_URL"),
        (
            {"encoder": {"pools": {"cpu": {"extraEnv": [{"name": "AEENC_ENCODER_PORT", "value": "1"}]}}}},
            "AEENC_ENCODER_PORT stands twice in encoder",
        ),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(values: dict[str, Any], named: str):
    with pytest.raises(ChartError, match=re.escape(named)):
        render(values)


def test_every_example_is_rendered_here():
    assert {path.stem for path in (CHART / "examples").glob("*.yaml")} | {"defaults"} == set(SETS)
