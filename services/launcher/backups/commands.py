"""`aeenc backup|restore` and `aeenc corpus export|import`: of the fleet of `aeenc up`, or of any stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from aeenc.cli.options import taking
from aeenc.cli.output import EndedBadly, Output, fields_table, output_of
from aeenc.errors import FailedPrecondition, InvalidArgument
from aeenc.transport.targets import home as default_home
from services.corpus.commands import store_of
from services.launcher.backups.archive import Backup
from services.launcher.fleet import Fleet
from services.store.artifacts import ArtifactStore

if TYPE_CHECKING:  # other commands need no redis
    from redis.asyncio import Redis

    from services.launcher.backups.restoring import Restored

Home = Annotated[Path | None, typer.Option(help="The home of `aeenc up`.  [default: AEENC_HOME or .aeenc]")]
RedisUrl = Annotated[
    str, typer.Option("--redis", envvar="AEENC_REDIS_URL", help="The Redis of other services; needs --artifacts.")
]
Artifacts = Annotated[Path | None, typer.Option(help="The ARTIFACTS_DIR of other services; needs --redis.")]


def back_up(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(help="A new file, such as monday.tar.")],
    home: Home = None,
    redis: RedisUrl = "",
    artifacts: Artifacts = None,
    namespace: Annotated[str, typer.Option(help="Only the keys of this namespace.  [default: all]")] = "",
) -> None:
    """Writes Redis and the artifacts of one moment to a new place, while the services go on working.

    Settings, tokens, logs and STATE_DIR are not in it. Exit code 5 if something was missing or damaged already.
    """
    out = output_of(context)
    made = asyncio.run(_back_up(out, target, home, redis, artifacts, namespace))
    if made:
        raise EndedBadly(f"the backup is made, but the deployment itself lacks: {'; '.join(made)}")


async def _back_up(
    out: Output, target: Path, home: Path | None, url: str, artifacts: Path | None, namespace: str
) -> tuple[str, ...]:
    from services.launcher.backups.making import make_backup

    async with _stores(home, url, artifacts, is_stopped=False) as (redis, store):
        made = await make_backup(redis, store, target, namespace, out.note)
    fields = {"backup": str(target), **asdict(made)}
    out.result(fields, _table(fields))
    return made.damaged


def bring_back(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="The .tar of a backup.")],
    home: Home = None,
    redis: RedisUrl = "",
    artifacts: Artifacts = None,
    force: Annotated[bool, typer.Option(help="Replace the keys that are there, and move artifacts aside.")] = False,
    only_check: Annotated[bool, typer.Option("--check", help="Read and compare every file, and restore nothing.")] = (
        False
    ),
) -> None:
    """Brings a backup back into an empty home, or into an empty Redis and folder; the services must not run.

    Every file is compared with its hash before anything is written.
    """
    from services.launcher.backups.restoring import check, summary

    out = output_of(context)
    with closing(Backup(source)) as backup:
        with out.progress("checking", "files"):
            check(backup)
        said = summary(backup)
        if only_check:
            out.result({"sound": True, **said}, _table(said), "every file is as it was written")
            return
        restored = asyncio.run(_bring_back(backup, home, redis, artifacts, force))
    fields = asdict(restored)
    out.result({**said, **fields}, _table(fields))
    if home is not None:
        out.note(f"`aeenc up --home {home}` starts it, with the options of before: --gold, --people, --oracle …")


async def _bring_back(backup: Backup, home: Path | None, url: str, artifacts: Path | None, force: bool) -> Restored:
    from services.launcher.backups.restoring import restore

    async with _stores(home, url, artifacts, is_stopped=True) as (redis, store):
        return await restore(redis, store, backup, force=force)


@taking(store=store_of)
def export_corpus(
    context: typer.Context,
    corpus: Annotated[str, typer.Argument(help="The corpus.")],
    target: Annotated[Path, typer.Argument(help="A new file, such as science.tar.")],
    store: ArtifactStore,
    generation: Annotated[str, typer.Option(help="[default: the active one]")] = "",
) -> None:
    """Writes one generation of a corpus into one archive, for another deployment with an encoder of the same space."""
    from services.launcher.backups.generations import export_generation

    moved = export_generation(store, corpus, generation, target)
    out = output_of(context)
    out.result({"archive": str(target), **asdict(moved)}, _table(asdict(moved)))


@taking(store=store_of)
def import_corpus(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="What `aeenc corpus export` has written.")],
    store: ArtifactStore,
    corpus: Annotated[str, typer.Option(help="The corpus to add it to.  [default: its own]")] = "",
    activate: Annotated[bool, typer.Option(help="Make it the active generation.")] = True,
) -> None:
    """Adds an exported generation to this deployment, whose indexes serve it within seconds.

    Every file is compared with its hash before the generation can be seen.
    """
    from services.launcher.backups.generations import import_generation

    moved = import_generation(store, source, corpus, activate=activate)
    output_of(context).result({**asdict(moved), "active": activate}, _table(asdict(moved)))


@asynccontextmanager
async def _stores(
    home: Path | None, url: str, artifacts: Path | None, *, is_stopped: bool
) -> AsyncIterator[tuple[Redis, ArtifactStore]]:
    """Opens the stores that the options name; AEENC_REDIS_PASSWORD_FILE, _CA and so on say what else a Redis needs."""
    from services.store.redis import connect

    if bool(url) != (artifacts is not None):
        raise InvalidArgument("--redis and --artifacts name one deployment; give both, or --home alone")
    if artifacts is not None:
        from pydantic import ValidationError

        from services.kit.settings import RedisSettings

        try:
            options = RedisSettings(_env_prefix="AEENC_").redis()
        except ValidationError as error:
            raise InvalidArgument("; ".join(f"AEENC_…: {one['msg']}" for one in error.errors())) from None
        async with aclosing(connect(url, **options)) as redis:
            yield redis, ArtifactStore(artifacts)
        return
    fleet = Fleet(home or default_home())
    if is_stopped and (running := fleet.running()):
        raise FailedPrecondition(f"{', '.join(running)} of {fleet.home} run; stop them with `aeenc down`")
    if not is_stopped and fleet.options() is None:
        raise InvalidArgument(f"{fleet.home} is no home of `aeenc up`; name one, or give --redis and --artifacts")
    with fleet.with_redis() as known:
        async with aclosing(connect(known)) as redis:
            yield redis, ArtifactStore(fleet.artifacts)


def _table(fields: Mapping[str, Any]) -> Table:
    """Shows fields; of what is listed, how many there are."""
    return fields_table(
        {name: len(one) if isinstance(one, list | tuple | dict) else one for name, one in fields.items()}
    )


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("backup")(back_up)
    app.command("restore")(bring_back)
    for group in app.registered_groups:
        if group.name == "corpus" and group.typer_instance is not None:
            group.typer_instance.command("export")(export_corpus)
            group.typer_instance.command("import")(import_corpus)
