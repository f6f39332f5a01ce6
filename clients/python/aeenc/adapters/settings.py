"""Settings of a program from flags and the environment, for the services and the HTTP servers in front of them.

Needs pydantic-settings, which the SDK does not install.
"""

from __future__ import annotations

import re
import sys
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsError

S = TypeVar("S", bound=BaseSettings)


def read_settings(kind: type[S], arguments: list[str] | None = None, **options: Any) -> S:
    """Reads flags (`--port 50051`; None: those of the process) and the environment; `options` as of CliSettingsSource.

    A wrong value ends the process with status 2 and a line with its name.
    """
    given = sys.argv[1:] if arguments is None else arguments
    all_of_them = options.get("cli_prog_name", "settings")
    try:
        flags: CliSettingsSource[Any] = CliSettingsSource(kind, cli_parse_args=given, cli_kebab_case=True, **options)
        return kind(_cli_settings_source=flags)
    except SettingsError as error:  # shows nothing of the value: there may be a secret in it
        name = next((name for name in re.findall(r"\w+", str(error)) if name in kind.model_fields), all_of_them)
        faults = [(name, "cannot be read; give JSON of its kind, see the table of settings")]
    except ValidationError as error:
        places = [[str(part) for part in one["loc"]] or [all_of_them] for one in error.errors()]
        faults = [
            (name, ": ".join(filter(None, [".".join(inside), one["msg"]])))
            for (name, *inside), one in zip(places, error.errors(), strict=True)
        ]
    for name, fault in faults:
        variable = f"{kind.model_config.get('env_prefix', '')}{name.upper()} (--{name.replace('_', '-')})"
        sys.stderr.write(f"{variable if name in kind.model_fields else name}: {fault}\n")
    raise SystemExit(2)
