"""`python -m tools.settings_doc`: writes from the settings classes; a test proves that all is fresh.

docs/settings.md, and in the schema of the Helm chart's values the names that its `settings` may have.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

from aeenc.adapters.http import HttpSettings
from aeenc.cli.main import app
from services.encoder.settings import EncoderSettings
from services.index.settings import IndexSettings
from services.kit.settings import ServiceSettings
from services.sampler.settings import OracleSettings, QueueSettings, SamplerSettings
from services.trainer.settings import TrainerSettings

ROOT = Path(__file__).resolve().parents[1]
PATH = ROOT / "docs" / "settings.md"
CHART = ROOT / "deploy" / "helm" / "aeenc" / "values.schema.json"
SERVICES: tuple[type[ServiceSettings], ...] = (EncoderSettings, IndexSettings, SamplerSettings, TrainerSettings)
OF_THIS_MACHINE = {"threads", "build_threads"}  # their default is the number of CPU cores
# What the chart itself sets, from values of its own, or what a pod has no use for.
SET_BY_CHART = {
    *("host", "port", "metrics_port", "instance", "drain_s", "log_file", "log_file_bytes", "state_dir", "namespace"),
    *("token", "admin_token", "tokens_file", "allow_insecure", "peer_token", "peer_admin_token", "peer_ca", "ca"),
    *("token_file", "admin_token_file", "peer_token_file", "peer_admin_token_file"),
    *("peer_cert", "peer_key", "cert", "key", "tls_cert", "tls_key", "tls_client_ca"),
    *("artifacts_dir", "artifacts_url", "artifacts_cache_bytes"),
    *("redis_url", "redis_password", "redis_password_file", "redis_sentinel_password", "redis_ca", "redis_cert"),
    *("redis_key", "queued_tokens", "oracles", "queues", "url", "oidc_client_secret_file", "link", "print_links"),
    "serving_processes",  # a pod is one; replicas do that
    *("encoder", "index", "sampler", "trainer", "sign_out_everybody"),
    *("encoder_target", "index_target", "sampler_target", "trainer_target"),
}

HEAD = """# Settings

Written by `python -m tools.settings_doc` from the settings classes. A setting is an environment variable
`AEENC_<SERVICE>_<NAME>` or a flag (`python -m services.encoder --metrics-port 9051`); flags win. A wrong value stops
the start with its name and status 2; a misspelt name is ignored, and the log's first lines say so.
"""


COMMAND_LINE = """## The command line

`aeenc` reads these where the option is not given.

| variable | option | |
|---|---|---|
| `AEENC_HOME` | | where `aeenc up` keeps its state; `.aeenc` unless set |
| `AEENC_TLS` | `--tls` | `true`: TLS where a public authority certifies the servers |
| `AEENC_PLAIN_TOKEN` | `--plain-token` | `true`: credentials travel to other hosts without TLS, too |"""


def render() -> str:
    """The page."""
    common = set(ServiceSettings.model_fields)
    parts = [HEAD, "## Every service", _table(ServiceSettings, common - {"port"})]
    for settings in SERVICES:
        own = set(settings.model_fields) - common | {"port"}
        parts += [f"## AEENC_{settings.service.upper()}_…", _table(settings, own)]
    parts += ["## An oracle in `AEENC_SAMPLER_ORACLES`", "A JSON object by name, each with these fields.\n"]
    parts += [_table(OracleSettings, set(OracleSettings.model_fields), upper=False)]
    parts += ["## A queue in `AEENC_SAMPLER_QUEUES`", "A JSON object by name, each with these fields.\n"]
    parts += [_table(QueueSettings, set(QueueSettings.model_fields), upper=False)]
    return "\n".join([*parts, COMMAND_LINE, *_variables(), ""])


def chart_schema() -> str:
    """The schema of the chart's values, with the settings of today."""
    names = {settings.service: set(settings.model_fields) for settings in SERVICES}
    names["fleet"] = set.intersection(*names.values())
    for client in ("gateway", "workbench"):
        names[client] = client_settings(client)
    lists = {name: sorted(one.upper() for one in fields - SET_BY_CHART) for name, fields in names.items()}
    lists["oracle"] = sorted(set(OracleSettings.model_fields) - {"token"} | {"tokenSecret"})
    lists["queue"] = sorted(QueueSettings.model_fields)
    schema = json.loads(CHART.read_text(encoding="utf-8"))
    for name, listed in lists.items():
        schema["definitions"][f"{name}Name"] = {"enum": listed}
    return json.dumps(schema, indent=2) + "\n"


def client_settings(client: str) -> set[str]:
    """The fields of the settings class of gateway or workbench, whose imports need not be installed."""
    path = ROOT / "clients" / client / f"aeenc_{client}" / "settings.py"
    [settings] = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    return set(HttpSettings.model_fields) | {
        field.target.id
        for field in settings.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _table(settings: type[BaseModel], names: set[str], *, upper: bool = True) -> str:
    rows = ["", "| name | default | |", "|---|---|---|"]
    for name, field in settings.model_fields.items():
        if name in names:
            rows.append(f"| `{name.upper() if upper else name}` | {_default(name, field)} | {_meaning(field)} |")
    return "\n".join([*rows, ""])


def _variables() -> list[str]:
    """A row for each variable that an option of a command reads."""
    found: dict[str, str] = {}
    commands: list[Any] = [get_command(app)]
    for command in commands:  # grows while it is walked
        commands += getattr(command, "commands", {}).values()
        for option in command.params:
            if isinstance(option.envvar, str):
                told = getattr(option, "help", None) or f"where the {option.name} is, `HOST:PORT`"
                found.setdefault(option.envvar, f"| `{option.envvar}` | `{option.opts[0]}` | {told} |")
    return list(found.values())


def _meaning(field: FieldInfo) -> str:
    """What a setting is, and the values it may have where they are few."""
    if get_origin(field.annotation) is not Literal:
        return str(field.description)
    return f"{field.description} ({', '.join(f'`{value}`' for value in get_args(field.annotation) if value)})"


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if name in OF_THIS_MACHINE:
        return "CPU cores"
    value = field.get_default(call_default_factory=True)
    return f"`{value}`" if value or value == 0 else ""


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
    CHART.write_text(chart_schema(), encoding="utf-8")
