"""`aeenc up`, `down`, `doctor` and `demo`; with `token`, `backup` and `restore`, all that need the services."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from aeenc import connect
from aeenc.cli.output import output_of, table
from aeenc.cli.targets import targets_of
from aeenc.errors import AeencError, InvalidArgument
from aeenc.evaluation import gold_of, load_data
from aeenc.transport.targets import home as default_home
from services.corpus import commands as vectors
from services.kit.credentials.credential_file import load
from services.launcher import tokens as named_credentials
from services.launcher.backups import commands as backups
from services.launcher.demo import run_demo
from services.launcher.fleet import BASE_PORT, Fleet, Options, fingerprint, read_token, running_elsewhere

Home = Annotated[Path | None, typer.Option(help="Where everything is kept.  [default: AEENC_HOME or .aeenc]")]
SAMPLE = Path(__file__).resolve().parents[2] / "data" / "sample"


def up(
    context: typer.Context,
    home: Home = None,
    base_port: Annotated[
        int | None, typer.Option(min=0, max=65000, help=f"First of six ports; 0: free ones.  [default: {BASE_PORT}]")
    ] = None,
    oracle: Annotated[
        list[str] | None,
        typer.Option(help="NAME=HOST:PORT of an oracle of yours, besides those known; NAME= forgets it."),
    ] = None,
    oracle_token: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE with the token that this oracle expects; repeatable.")
    ] = None,
    people: Annotated[
        list[str] | None, typer.Option(help="NAME or NAME=N of a queue of people, N on each task; repeatable.")
    ] = None,
    guideline: Annotated[Path | None, typer.Option(help="Markdown file that the people of these queues read.")] = None,
    workbench: Annotated[
        bool | None, typer.Option("--workbench/--no-workbench", help="Also serve the page on which people judge.")
    ] = None,
    gold: Annotated[Path | None, typer.Option(help="Also serve a gold oracle over this directory's trees.")] = None,
    split: Annotated[str | None, typer.Option(show_default="train", help="The split of --gold that answers.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="A Redis of yours instead of a private one.")] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="File of named credentials; needs --token and --admin-token, too.")
    ] = None,
) -> None:
    """Starts all services on this machine, or those that do not run; state is picked up where it was left.

    Without flags it starts what it was told to start the last time. With --token (AEENC_TOKEN) the services want it.
    """
    given = targets_of(context)
    fleet = Fleet(home or default_home(), token=given.token, admin_token=given.admin_token)
    out = output_of(context)
    last = fleet.options()
    known = last or Options()
    gold_trees = known.gold_trees if gold is None else str(gold.resolve())
    gold_split = split or (known.gold_split if gold is None else "train")
    if split and not gold_trees:
        raise InvalidArgument(f"--split {split} is that of a gold oracle; name its trees, too, with --gold DIR")
    if gold or split:
        gold_of(load_data(Path(gold_trees)), gold_split)  # before anything is touched
    with_workbench = known.workbench if workbench is None else workbench
    if with_workbench and find_spec("aeenc_workbench") is None:
        raise InvalidArgument(
            "--workbench needs `pip install ./clients/workbench` in a checkout; or start without: --no-workbench"
        )
    oracles = _oracles(known.oracles, oracle or [])
    if oracle_token is not None:
        token_files = dict(_parse_token_file(text, oracles) for text in oracle_token)
    else:  # no token goes to another address than it was given for
        kept = {name for name, target in oracles.items() if known.oracles.get(name) == target}
        token_files = {name: file for name, file in known.oracle_token_files.items() if name in kept}
    options = Options(
        base_port=known.base_port if base_port is None else base_port,
        oracles=oracles,
        oracle_token_files=token_files,
        oracle_credentials=fingerprint(*map(read_token, token_files.values())),
        people=known.people if people is None else dict(_parse_queue(text) for text in people),
        guideline=known.guideline if guideline is None else str(guideline.resolve()),
        workbench=with_workbench,
        gold_trees=gold_trees,
        gold_split=gold_split,
        redis_url=known.redis_url if redis_url is None else redis_url,
        tokens_file=known.tokens_file if tokens is None else str(tokens.resolve()),
        credentials=fleet.credentials,
    )
    if options.tokens_file:
        if not (given.token and given.admin_token):
            raise InvalidArgument(
                "--tokens needs --token and --admin-token, too: the services call each other with them; give both, "
                "in each `aeenc up`"
            )
        load(Path(options.tokens_file))
    if last is None:
        out.note(f"a new fleet in {fleet.home}{_elsewhere(fleet)}")
    for name in [name for name, target in known.oracles.items() if oracles.get(name) != target]:
        out.note(f"oracle {name}: {f'no longer at {known.oracles[name]}' if name in oracles else 'forgotten'}")
    targets = fleet.up(options, out.note)
    rows = [*targets.items(), *((f"oracle {name}", target) for name, target in options.oracles.items())]
    rows += [(f"people {name}", f"{n} on each task") for name, n in options.people.items()]
    link = {"sign_in": fleet.sign_in_link()} if options.workbench else {}
    told = {"home": str(fleet.home), "targets": targets, **link}
    shown = () if out.as_json else (table(["service", "address"], rows), _next_step(targets["index"], given.token))
    out.result(told, *shown)
    if link and not out.as_json:
        typer.echo(f"Workbench, to be opened once within an hour: {link['sign_in']}")  # in one line: it is to be copied


def _elsewhere(fleet: Fleet) -> str:
    """Says where other fleets run; empty where none does."""
    others = ", ".join(map(str, running_elsewhere(fleet.home)))
    return f"; another one runs in {others}, which --home or AEENC_HOME names" if others else ""


def _next_step(index: str, token: str | None) -> str:
    """Says what can be done with the corpora that there are."""
    names: list[str] = []
    with suppress(AeencError), connect(index=index, token=token, ca="", retry=False, timeout_s=2.0) as client:
        names = [one.corpus for one in client.index.list_corpora() if one.active.id]
    if not names:
        return "build a corpus: aeenc corpus build NAME --facts FILE"
    others = f"; other corpora: {', '.join(names[1:])}" if names[1:] else ""
    return f"search: aeenc retrieve {names[0]} TEXT{others}"


def down(context: typer.Context, home: Home = None) -> None:
    """Stops what `up` has started; what it keeps stays."""
    fleet = Fleet(home or default_home())
    ended = fleet.down()
    text = f"ended {', '.join(ended)}" if ended else f"nothing of {fleet.home} was running{_elsewhere(fleet)}"
    output_of(context).result({"home": str(fleet.home), "ended": ended}, text)


def doctor(context: typer.Context, home: Home = None) -> None:
    """Looks for what is wrong with this machine and the services, each with its remedy; exit code 1 if something is."""
    from services.launcher.doctor import examine  # brings redis, which other commands do not need

    found = asyncio.run(examine(targets_of(context), Fleet(home or default_home())))
    wrong = sum(one.state == "wrong" for one in found)
    rows = [(one.check, one.state, one.about, one.remedy) for one in found]
    output_of(context).result(
        {"findings": [asdict(one) for one in found], "wrong": wrong}, table(["check", "", "about", "remedy"], rows)
    )
    if wrong:
        raise typer.Exit(1)


def demo(
    context: typer.Context,
    data: Annotated[Path | None, typer.Option(help="Directory in EntailmentBank's layout.  [default: sample]")] = None,
    home: Home = None,
    epochs: Annotated[int, typer.Option(min=0, max=100, help="0: by the size of the data.")] = 0,
) -> None:
    """Shows the whole loop: corpus, sampling, training, publishing under load, and quality before and after.

    On two cores the sample takes one to five minutes, most of them training.
    """
    directory = data or SAMPLE
    if not directory.is_dir():
        raise InvalidArgument(f"{directory} is not a directory; give one in EntailmentBank's layout with --data")
    run_demo(directory, (home or default_home()) / "demo", output_of(context), epochs)


def register(app: typer.Typer) -> None:
    """Adds the commands. Called through the entry-point group `aeenc.commands`."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("demo")(demo)
    app.command("doctor")(doctor)
    backups.register(app)
    vectors.register(app)
    named_credentials.register(app)
    import_module("services.local.pulling").register(app)  # by name: it opens models, which nothing here may load


def _oracles(known: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    """Adds the oracles given to those known; one that is given as `NAME=` is forgotten."""
    oracles = dict(known)
    for text in given:
        name, equals, target = text.partition("=")
        if not equals or not name or (target and ":" not in target):
            raise InvalidArgument(
                f"--oracle {text!r} is neither NAME=HOST:PORT, such as mine=127.0.0.1:50060, nor NAME= to forget it"
            )
        oracles[name] = target
    return {name: target for name, target in oracles.items() if target}


def _parse_token_file(text: str, oracles: Collection[str]) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    if not equals or not file:
        # not shown: it may be the token itself
        raise InvalidArgument("--oracle-token is not NAME=FILE, such as mine=mine.token")
    if name not in oracles:
        known = ", ".join(oracles) or "none"
        raise InvalidArgument(f"--oracle-token {name}=… is of no oracle of yours ({known}); name it with --oracle, too")
    return name, str(Path(file).resolve())


def _parse_queue(text: str) -> tuple[str, int]:
    name, equals, overlap = text.partition("=")
    if not name or (equals and not (overlap.isdecimal() and 1 <= int(overlap) <= 100)):
        raise InvalidArgument(f"--people {text!r} is not NAME or NAME=N with N from 1 to 100, such as team=2")
    return name, int(overlap or 1)
