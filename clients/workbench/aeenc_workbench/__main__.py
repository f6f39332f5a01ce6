"""Starts the workbench: `aeenc-workbench`, `aeenc workbench`, or `python -m aeenc_workbench`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvicorn

from aeenc.errors import AeencError, InvalidArgument
from aeenc.trees import Dataset
from aeenc_workbench.app import make_app
from aeenc_workbench.calls import Gold
from aeenc_workbench.oidc import Oidc
from aeenc_workbench.settings import WorkbenchSettings
from aeenc_workbench.sign_in import Links, Sessions

DRAIN_S = 5


def main(arguments: list[str] | None = None) -> None:
    """Reads the settings, prints a link for each person, and serves until SIGTERM or Ctrl-C."""
    settings = WorkbenchSettings.from_command_line(arguments)
    try:
        serve = _ready(settings)
    except (AeencError, OSError) as error:
        sys.exit(f"aeenc-workbench: {error}")
    if serve:
        serve()


def _ready(settings: WorkbenchSettings) -> Callable[[], None] | None:
    """Does what ends at once, or makes everything ready and returns what serves."""
    settings = settings.of_fleet() if settings.link or settings.sign_out_everybody else settings
    links = Links(settings.folder)
    if settings.sign_out_everybody:
        Sessions(settings.folder).end_all()
        return None
    if settings.link:
        _print_links(settings, links, settings.address(settings.port))
        return None
    targets = settings.targets("sampler", "index", "trainer", token=settings.token)
    secure = settings.tls_cert is not None or settings.url.startswith("https://")
    provider = settings.provider
    oidc = Oidc(provider, links.key, secure=secure, session_s=settings.oidc_session_s) if provider else None
    app = make_app(links, secure=secure, oidc=oidc, gold=_gold(settings.gold), **targets.options())
    if targets.plain_token and not targets.are_tls:
        sys.stderr.write("aeenc-workbench: its token may travel to other hosts without TLS (plain_token)\n")

    def listening(url: str) -> None:
        if settings.print_links:
            _print_links(settings, links, url)

    options = {"server": Server, "log_level": "warning", "timeout_graceful_shutdown": DRAIN_S}
    return partial(settings.serve, app, listening, **options)


def _gold(folder: Path | None) -> list[Gold]:
    """The dev queries of gold trees, or none. Raises InvalidArgument, naming the setting."""
    try:
        return [(query.text, query.gold) for query in Dataset.load(folder).queries("dev")] if folder else []
    except AeencError as error:
        raise InvalidArgument.field("gold", error.message) from None


class Server(uvicorn.Server):
    """Ends the streams of events first, so that open pages do not hold up the end."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, then everything else."""
        await self.config.app.state.events.stop()  # type: ignore[union-attr]
        await super().shutdown(sockets)


def _print_links(settings: WorkbenchSettings, links: Links, url: str) -> None:
    sys.stdout.write("Links, each for one person, to be opened once within an hour:\n")
    for person in settings.people:
        sys.stdout.write(f"  {person.name} ({person.role})  {settings.url or url}/sign-in?link={links.make(person)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
