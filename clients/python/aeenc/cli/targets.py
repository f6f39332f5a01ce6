"""The services of one invocation: its global options, else what `aeenc.transport.targets` finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

import aeenc

if TYPE_CHECKING:  # what needs no service needs no gRPC
    from aeenc.transport.targets import Targets

_KEY = "aeenc.targets"


def remember(context: typer.Context, options: Mapping[str, Any]) -> None:
    """Keeps the global options of this invocation; None stands for an absent one."""
    context.meta[_KEY] = dict(options)


def targets_of(context: typer.Context) -> Targets:
    """Returns the targets of this invocation. Raises InvalidArgument for a malformed fleet file."""
    from aeenc.transport.targets import Targets

    return Targets.find(**context.meta.get(_KEY, {}))


def client(context: typer.Context) -> aeenc.Client:
    """Opens a blocking client of this invocation's services, closed when its command ends."""
    return context.with_resource(aeenc.connect(**targets_of(context).options()))
