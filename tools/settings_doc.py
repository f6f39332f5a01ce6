"""`python -m tools.settings_doc`: writes docs/settings.md from the settings classes; a test proves it is fresh."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

from aeenc.cli.main import app
from services.encoder.settings import EncoderSettings
from services.index.settings import IndexSettings
from services.kit.settings import ServiceSettings
from services.sampler.settings import OracleSettings, QueueSettings, SamplerSettings
from services.trainer.settings import TrainerSettings

PATH = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
SERVICES: tuple[type[ServiceSettings], ...] = (EncoderSettings, IndexSettings, SamplerSettings, TrainerSettings)
OF_THIS_MACHINE = {"workers", "threads", "build_threads"}  # their default is the number of CPU cores

HEAD = """# Settings

Written by `python -m tools.settings_doc` from the settings classes. A setting is an environment variable
`AEENC_<SERVICE>_<NAME>` or a flag (`python -m services.encoder --metrics-port 9051`); flags win. A wrong value stops
the start with its name and status 2.
"""


COMMAND_LINE = """## The command line

`aeenc` reads these where the option is not given.

| variable | option | |
|---|---|---|
| `AEENC_HOME` | | where `aeenc up` keeps its state; `.aeenc` unless set |"""


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
