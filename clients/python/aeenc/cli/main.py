"""The command `aeenc`: global options, the list of commands, and errors turned into exit codes.

Commands are functions of the modules beside this one. Other distributions add commands through the entry-point group
`aeenc.commands`: each names a function `register(app: typer.Typer) -> None`.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from aeenc import __version__, errors
from aeenc.cli import output, targets

EXIT_CODES = """Exit codes:

0  done

1  unexpected failure

2  wrong use or input: a bad argument, a malformed file, an unknown name, a missing credential

3  a service cannot be reached, is overloaded or did not answer in time

4  refused in the present state: a conflict, the quality gate, something that exists already

5  long work ended badly, or stored data is damaged: a failed or cancelled run or job, an incomplete rollout

130  interrupted
"""
# Functions below `aeenc.cli`, in the order of `aeenc --help`. Each module is imported when a command of it is wanted.
_COMMANDS = (
    *("fleet.status", "learning.retrieval.retrieve", "learning.runs.sample"),
    *("people.queues", "people.tree", "people.tasks", "people.retrieve_again", "people.changes"),
    *("people.agreement", "people.adjudicate", "people.close"),
    *("learning.jobs.train", "learning.jobs.follow", "learning.jobs.resume", "learning.jobs.cancel"),
    *("fleet.publish", "fleet.rollback", "fleet.gc"),
    *("learning.loop.loop", "learning.evaluation.evaluate", "learning.evaluation.compare", "learning.evaluation.fuse"),
    "learning.provers.score_trees",
)
# name -> help, and its functions by name
_GROUPS: dict[str, tuple[str, dict[str, str]]] = {
    "corpus": (
        "Corpora: the premises that are searched.",
        {
            "build": "corpus.build",
            "add": "corpus.add",
            "remove": "corpus.remove",
            "list": "fleet.corpora",
            "activate": "fleet.activate_generation",
            "explain": "corpus.explain",
            "verify": "corpus.verify",
            "repair": "corpus.repair",
            "delete": "fleet.delete_corpus",
        },
    ),
    "export": (
        "What runs have recorded, folds of a data set, and lists for provers, as files.",
        {
            "pairs": "data.export_pairs",
            "triplets": "data.export_triplets",
            "beir": "data.export_beir",
            "trees": "data.export_trees",
            "folds": "data.export_folds",
            "task3": "learning.provers.export_task3",
        },
    ),
    "import": ("Judgements made elsewhere.", {"pairs": "data.import_pairs"}),
    "data": ("Data sets.", {"fetch": "data.fetch", "check": "data.check"}),
    "oracle": (
        "Oracles: who says what explains.",
        {
            "gold": "oracle.gold",
            "noisy": "oracle.noisy",
            "model": "oracle.model",
            "llm": "llm.llm",
            "composite": "oracle.composite",
            "terminal": "terminal.terminal",
            "controls": "oracle.controls",
            "check": "llm.check",
        },
    ),
}
# name -> what it does by itself, and its functions by name
_LISTS: dict[str, tuple[str, dict[str, str]]] = {
    "runs": ("learning.jobs.runs", {"delete": "learning.jobs.delete_run"}),
    "jobs": ("learning.jobs.jobs", {"delete": "learning.jobs.delete_job"}),
    "checkpoints": ("fleet.checkpoints", {"delete": "fleet.delete_checkpoint"}),
    "labels": ("fleet.labels", {"delete": "fleet.delete_label"}),
}
# The boxes of `aeenc --help`, in the order of a first day. What is not named here has one of its own.
_PANELS = {
    "Start": "up demo status doctor down",
    "Search": "corpus retrieve",
    "Learn": "sample train evaluate compare loop runs jobs follow resume cancel oracle export import data tune "
    "tune-retrieval fuse score-trees",
    "People": "workbench queues tree tasks retrieve-again changes agreement adjudicate close",
    "Operate": "publish rollback checkpoints labels gc backup restore token completion",
}
Find = Callable[[str], Callable[..., None]]  # the function of a command, by its path
# code -> classes of errors; the first that fits decides
_EXIT_CODES: dict[int, tuple[type[errors.AeencError], ...]] = {
    5: (output.EndedBadly, errors.DataLoss),
    2: (
        *(errors.InvalidArgument, errors.NotFound, errors.Unauthenticated, errors.PermissionDenied),
        errors.VersionNotLoaded,  # no encoder has the label or version of the arguments
        errors.Unimplemented,  # another service is at the address
    ),
    3: (errors.Unavailable, errors.DeadlineExceeded, errors.Overloaded),
    4: (errors.FailedPrecondition, errors.Aborted, errors.AlreadyExists),
    1: (errors.AeencError,),
}
INTERRUPTED = 130
# Commands of the services -> the function that has their help, below `services`.
_OF_SERVICES = {
    **{name: f"launcher.commands.{name}" for name in ("up", "down", "demo", "doctor")},
    "backup": "launcher.backups.commands.back_up",
    "restore": "launcher.backups.commands.bring_back",
    "token": "launcher.tokens.register",
    "tune": "tuning.words.command",
    "tune-retrieval": "tuning.retrieval.command",
}
# Commands of other distributions. A user who has only the SDK is told where they come from.
_ELSEWHERE = {
    **dict.fromkeys(_OF_SERVICES, ("the services", "pip install ./clients/python '.[one-machine]' (in a checkout)")),
    "workbench": ("the workbench", "pip install ./clients/python ./clients/workbench (in a checkout)"),
}
_COMPLETION = "_AEENC_COMPLETE"
_WRONG_WORDS: Any = typer.BadParameter.__base__  # of all wrong use; typer has no public name for it
_PYDANTICS = "Value error, "  # before what typer says about a choice
_FULL = {errno.ENOSPC, errno.EDQUOT}


def exit_code_of(error: errors.AeencError) -> int:
    """Returns the exit code of a command that ended with this error."""
    from aeenc.loop import RolloutIncomplete, WorkEndedBadly

    if isinstance(error, (WorkEndedBadly, RolloutIncomplete)):
        return 5
    return next(code for code, classes in _EXIT_CODES.items() if isinstance(error, classes))


class Commands(TyperGroup):
    """The root command: turns errors into one line and an exit code, and accepts --json anywhere.

    It begins empty and adds what is asked for: one command with its imports, or all with those of other distributions,
    whose imports take a second that no `aeenc status` should wait.
    """

    _is_whole = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        if "--json" in args[:end]:
            args = ["--json", *(word for word in args[:end] if word != "--json"), *args[end:]]
            output.remember(ctx, output.Output(as_json=True))  # another option may be wrong
        with _failures_told(ctx):
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        self._add_others()
        order = [name for names in _PANELS.values() for name in names.split() if name in self.commands]
        return [*order, *(name for name in super().list_commands(ctx) if name not in order)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(Commands, self.described()).format_help(ctx, formatter)

    @staticmethod
    def described() -> Commands:
        """Builds all commands with their help alone, each in its box. They cannot run."""
        made: Commands = _built(None, _described)
        made._is_whole = True
        boxes = {name: panel for panel, names in _PANELS.items() for name in names.split()}
        for name, command in made.commands.items():
            vars(command)["rich_help_panel"] = boxes.get(name)
        return made

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in _OWN and not self._is_whole:
            self.commands |= _built({cmd_name}).commands
        elif cmd_name not in self.commands:
            self._add_others()
        return super().get_command(ctx, cmd_name)

    def _add_others(self) -> None:
        if not self._is_whole:
            whole = _built(None)
            self.commands, self.epilog, self._is_whole = whole.commands, whole.epilog, True

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.get_command(ctx, args[0])
        if args[0] in _ELSEWHERE and args[0] not in self.commands:
            source, remedy = _ELSEWHERE[args[0]]
            ctx.fail(f"`aeenc {args[0]}` is not installed here; it comes with {source}: {remedy}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _failures_told(ctx):
            return super().invoke(ctx)


@contextmanager
def _failures_told(ctx: Any) -> Iterator[None]:
    try:
        yield
        return
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except errors.AeencError as error:
        failure = error
    except BrokenPipeError:
        raise  # who reads the output has seen enough
    except OSError as error:
        kind = errors.Unavailable if error.errno in _FULL else errors.InvalidArgument
        failure = kind(": ".join(str(part)[:200] for part in (error.filename, error.strerror or error) if part))
    except _WRONG_WORDS as error:
        error.message = error.message.removeprefix(_PYDANTICS)
        if not output.output_of(ctx).as_json:
            raise  # typer shows it beside the usage
        failure = errors.InvalidArgument(error.format_message() or "Missing command.")
    output.output_of(ctx).error(failure)
    raise typer.Exit(exit_code_of(failure))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aeenc {__version__}")
        raise typer.Exit


def options(
    context: typer.Context,
    encoder: Annotated[str | None, typer.Option(envvar="AEENC_ENCODER", metavar="HOST:PORT")] = None,
    index: Annotated[str | None, typer.Option(envvar="AEENC_INDEX", metavar="HOST:PORT")] = None,
    sampler: Annotated[str | None, typer.Option(envvar="AEENC_SAMPLER", metavar="HOST:PORT")] = None,
    trainer: Annotated[str | None, typer.Option(envvar="AEENC_TRAINER", metavar="HOST:PORT")] = None,
    token: Annotated[
        str | None, typer.Option(envvar="AEENC_TOKEN", help="Credential for calls to the services.")
    ] = None,
    admin_token: Annotated[
        str | None, typer.Option(envvar="AEENC_ADMIN_TOKEN", help="Credential for calls that change what is served.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(envvar="AEENC_CA", help="CA (PEM); makes connections TLS.")] = None,
    tls: Annotated[
        bool | None,
        typer.Option("--tls", help="TLS where a public authority certifies the servers; also by AEENC_TLS=true."),
    ] = None,
    cert: Annotated[Path | None, typer.Option(envvar="AEENC_CERT", help="Client certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(envvar="AEENC_KEY", help="Its private key (PEM).")] = None,
    plain_token: Annotated[
        bool | None,
        typer.Option(
            "--plain-token",
            help="Send credentials to other hosts without TLS, in a network that you trust; also by "
            "AEENC_PLAIN_TOKEN=true.",
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", envvar="AEENC_TIMEOUT_S", min=0.1, help="Seconds for a call, its retries included."),
    ] = 8.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for programs.")] = False,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Premise retrieval that learns what explains: build corpora, retrieve, sample, train, publish, evaluate.

    Where the services are: these options, else the environment, else
    .aeenc/fleet.json of a local fleet, else this machine.
    """
    output.remember(context, output.Output(as_json=as_json))
    given = {"encoder": encoder, "index": index, "sampler": sampler, "trainer": trainer}
    given |= {"token": token, "admin_token": admin_token}
    connection = {"ca": ca, "cert": cert, "key": key, "tls": tls, "plain_token": plain_token, "timeout_s": timeout_s}
    targets.remember(context, {**given, **connection})


def _alone(command: Callable[[typer.Context], None]) -> Callable[[typer.Context], None]:
    """The command as a group's own: not carried out when one of the group's commands is."""

    def callback(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            command(context)

    return callback


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")]) -> None:
    """Prints the script that completes `aeenc` in a shell.

    bash: aeenc completion bash >> ~/.bashrc

    zsh: aeenc completion zsh >> ~/.zshrc, after the line with compinit

    fish: aeenc completion fish > ~/.config/fish/completions/aeenc.fish
    """
    os.environ[_COMPLETION] = f"source_{shell}"  # this is how typer is asked for it
    try:
        _app(())(args=[], prog_name="aeenc")
    finally:
        del os.environ[_COMPLETION]


def _name_of(path: str) -> str:
    return path.rpartition(".")[2].replace("_", "-")


# Commands that need no other distribution, which may add to `corpus`.
_OWN = {"completion", *map(_name_of, _COMMANDS), *_GROUPS, *_LISTS} - {"corpus"}


def _function(path: str, package: str = "aeenc.cli") -> Callable[..., None]:
    """Imports the function of a command, by its path below the package."""
    module, _, name = path.rpartition(".")
    function: Callable[..., None] = getattr(import_module(f"{package}.{module}"), name)
    return function


def _described(path: str, package: str = "aeenc.cli") -> Callable[..., None]:
    """Makes a stand-in that has the help of a command alone, read from its source, whose imports take a second."""
    module, _, name = path.rpartition(".")
    spec = find_spec(f"{package}.{module}")
    source = spec.loader.get_source(spec.name) if spec and isinstance(spec.loader, InspectLoader) else None
    found = re.search(rf'^ *def {name}\(.*?^ *"""(.*?)"""', source or "", re.MULTILINE | re.DOTALL)
    if found is None:
        return _function(path, package)

    def stand_in() -> None: ...

    stand_in.__doc__ = found[1]
    return stand_in


def _built(names: Collection[str] | None, find: Find = _function) -> Any:
    """Builds the click group of `_app`."""
    return typer.main.get_command(_app(names, find))


def _group(name: str, find: Find) -> typer.Typer:
    about, commands = _GROUPS[name]
    group = typer.Typer(help=about, no_args_is_help=True)
    if name == "import":
        group.callback()(lambda: None)  # otherwise its only command would become the group itself
    for own_name, path in commands.items():
        group.command(own_name)(find(path))
    return group


def _list(name: str, find: Find) -> typer.Typer:
    path, commands = _LISTS[name]
    command = find(path)
    group = typer.Typer(help=command.__doc__)
    group.callback(invoke_without_command=True)(_alone(command))
    for own_name, own in commands.items():
        group.command(own_name)(find(own))
    return group


def _app(names: Collection[str] | None = None, find: Find = _function) -> typer.Typer:
    """Builds the command line: all of it, or some commands of this distribution."""
    made = typer.Typer(name="aeenc", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)

    own = [path for path in _COMMANDS if names is None or _name_of(path) in names]
    for path in own:
        made.command(_name_of(path))(find(path))
    if names is None or "completion" in names:
        made.command()(completion)
    for name in [*_GROUPS, *_LISTS] if names is None else [name for name in names if name in {*_GROUPS, *_LISTS}]:
        made.add_typer(_list(name, find) if name in _LISTS else _group(name, find), name=name)
    missing = []
    others: Iterable[Any] = ()
    if names is None:
        from importlib.metadata import entry_points  # reads the files of all distributions

        others = entry_points(group="aeenc.commands")
    if find is _described and find_spec("services"):
        for name, path in _OF_SERVICES.items():
            made.command(name)(_described(path, "services"))
        others = [entry for entry in others if not entry.value.startswith("services.")]
    for entry in sorted(others, key=lambda entry: entry.name):
        try:
            entry.load()(made)
        except ImportError as error:  # a distribution without its extras must not hide the other commands
            missing.append(f"The commands of `{entry.name}` are not available: {error}")
    made.callback(epilog="\n\n".join([EXIT_CODES, *missing]))(options)
    return made


def __getattr__(name: str) -> typer.Typer:
    """Builds `app`, the whole command line, for those who ask for it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = built = _app()
    return built


def main() -> None:
    """Runs the command line; the script `aeenc`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an encoding that lacks a letter of a fact shows its escape
            stream.reconfigure(errors="backslashreplace")
    _app(())()


if __name__ == "__main__":
    main()
