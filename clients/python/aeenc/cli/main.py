"""The command `aeenc`: global options, the list of commands, and errors turned into exit codes.

Commands are functions of the modules beside this one. Other distributions add commands through the entry-point group
`aeenc.commands`: each names a function `register(app: typer.Typer) -> None`.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

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
    *("learning.loop.loop", "learning.evaluation.evaluate", "learning.comparison.compare", "learning.comparison.fuse"),
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
        "What runs have recorded, folds of a data set, lists for provers, vectors and encoders, as files.",
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
            "model": "oracle.model",
            "llm": "llm.llm",
            "composite": "oracle.composite",
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
# The sections of `aeenc --help`, in the order of a first day. What is not named here has one of its own.
_SECTIONS = {
    "Start": "up demo status doctor down",
    "Search": "corpus retrieve",
    "Learn": "sample train evaluate compare loop runs jobs follow resume cancel oracle export import data tune "
    "tune-retrieval fuse score-trees",
    "People": "workbench queues tree tasks retrieve-again changes agreement adjudicate close",
    "Operate": "publish rollback checkpoints labels model gc backup restore token",
}
# code -> classes of errors; the first that fits decides
_EXIT_CODES: dict[int, tuple[type[errors.AeencError], ...]] = {
    5: (errors.DataLoss,),
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
    "model": "local.pulling.register",
    "tune": "tuning.words.command",
    "tune-retrieval": "tuning.retrieval.command",
}
# Commands of other distributions. A user who has only the SDK is told where they come from.
_ELSEWHERE = {
    **dict.fromkeys(_OF_SERVICES, ("the services", "pip install ./clients/python '.[one-machine]' (in a checkout)")),
    "workbench": ("the workbench", "pip install ./clients/python ./clients/workbench (in a checkout)"),
}
_WRONG_WORDS: Any = typer.BadParameter.__base__  # of all wrong use; typer has no public name for it
_PYDANTICS = "Value error, "  # before what typer says about a choice
_FULL = {errno.ENOSPC, errno.EDQUOT}


def exit_code_of(error: errors.AeencError) -> int:
    """Returns the exit code of a command that ended with this error."""
    if error.reason == output.EndedBadly.default_reason:
        return 5
    return next(code for code, classes in _EXIT_CODES.items() if isinstance(error, classes))


def _processed(param: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """Passes on a default, or a text, as it is: typer loads pydantic for any other, which takes as long as gRPC."""
    is_given = context.get_parameter_source(param.name).name != "DEFAULT"
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if (param.required and value is None) or (is_given and kind not in {str, list[str]}):
        return process(context, value)
    passed = list(value or ()) if kind == list[str] else value
    return param.callback(context, param, passed) if param.callback else passed


class _Quick:
    """A command, or a group of them, whose parameters are `_processed`."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            vars(param).setdefault("process_value", partial(_processed, param, param.process_value))
        return params


class Command(_Quick, TyperCommand):
    """A command. Errors about a field of a request name the option or the argument that has it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except errors.AeencError as error:
            for one in error.violations:
                name, bracket, place = one.field.partition("[")
                param = next((param for param in self.params if param.name == name), None)
                if param is not None:
                    words = (param.metavar or name).upper().strip("[].")
                    called = words if param.param_type_name == "argument" else param.opts[-1]
                    error.message = error.message.replace(f"{one.field}: ", f"{called}{bracket}{place}: ")
            raise


class Group(_Quick, TyperGroup):
    """A group of commands, whose help has the first sentence of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 -- click's
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(sys.maxsize)) for name, one in self.commands.items()])


class Commands(Group):
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
        with failures_told(ctx):
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 -- click's
        self._add_others()
        return [name for names in _in_sections(self.commands).values() for name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 -- click's
        about, missing = summaries()
        self.epilog = "\n\n".join([EXIT_CODES, *missing])
        for section, names in _in_sections(about).items():
            with formatter.section(section):
                formatter.write_dl([(name, about[name]) for name in names])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in _OWN and not self._is_whole:
            self.commands |= _built({cmd_name}).commands
        elif cmd_name not in self.commands:
            self._add_others()
        return super().get_command(ctx, cmd_name)

    def _add_others(self) -> None:
        if not self._is_whole:
            self.commands, self._is_whole = _built(None).commands, True

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.get_command(ctx, args[0])
        if args[0] in _ELSEWHERE and args[0] not in self.commands:
            source, remedy = _ELSEWHERE[args[0]]
            ctx.fail(f"`aeenc {args[0]}` is not installed here; it comes with {source}: {remedy}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with failures_told(ctx):
            return super().invoke(ctx)


def _in_sections(names: Collection[str]) -> dict[str, list[str]]:
    """Sorts commands into the sections of `aeenc --help`."""
    found = {section: [one for one in known.split() if one in names] for section, known in _SECTIONS.items()}
    named = {one for listed in found.values() for one in listed}
    found["Others"] = [one for one in names if one not in named]
    return {section: listed for section, listed in found.items() if listed}


def summaries() -> tuple[dict[str, str], list[str]]:
    """Reads what each command does, importing none of this distribution and of the services; and what is missing."""
    summary_of = {_name_of(path): _summary(path) for path in _COMMANDS}
    summary_of |= {name: about for name, (about, _) in _GROUPS.items()}
    summary_of |= {name: _summary(path) for name, (path, _) in _LISTS.items()}
    if find_spec("services"):
        summary_of |= {name: _summary(path, "services") for name, path in _OF_SERVICES.items()}
    others = typer.Typer()
    others.callback()(lambda: None)
    missing = _add_distributions(others, except_for="services.")
    found: Any = typer.main.get_command(others)
    return summary_of | {name: command.help or "" for name, command in found.commands.items()}, missing


def _summary(path: str, package: str = "aeenc.cli") -> str:
    """Returns the first paragraph of a command's docstring, from the code of its module, whose imports take long."""
    module, _, name = path.rpartition(".")
    spec: Any = find_spec(f"{package}.{module}")
    codes = [spec.loader.get_code(spec.name)]
    for code in codes:  # a command may stand in another one
        inner = [one for one in code.co_consts if hasattr(one, "co_name")]
        if found := next((one for one in inner if one.co_name == name), None):
            return " ".join(cleandoc(found.co_consts[0] or "").partition("\n\n")[0].split())
        codes += inner
    raise LookupError(path)


def _add_distributions(made: typer.Typer, except_for: str = " ") -> list[str]:
    """Adds the commands of other distributions; returns a line for each that lacks something."""
    from importlib.metadata import entry_points  # reads the files of all distributions

    missing = []
    for entry in sorted(entry_points(group="aeenc.commands"), key=lambda entry: entry.name):
        if entry.value.startswith(except_for):
            continue
        try:
            entry.load()(made)
        except ImportError as error:  # a distribution without its extras must not hide the other commands
            missing.append(f"The commands of `{entry.name}` are not available: {error}")
    return missing


def _drop_what_is_unwritten() -> None:
    """Where stdout takes no more, Python would try again at its end, and exit with a status of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def failures_told(ctx: Any) -> Iterator[None]:
    """Writes in one line why a command fails, and ends it with the exit code of the failure."""
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
        _drop_what_is_unwritten()
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


def _name_of(path: str) -> str:
    return path.rpartition(".")[2].replace("_", "-")


# Commands that need no other distribution; others may add to `corpus` and `export`.
_OWN = {*map(_name_of, _COMMANDS), *_GROUPS, *_LISTS} - {"corpus", "export"}


def _function(path: str) -> Callable[..., None]:
    """Imports the function of a command, by its path below `aeenc.cli`."""
    module, _, name = path.rpartition(".")
    function: Callable[..., None] = getattr(import_module(f"aeenc.cli.{module}"), name)
    return function


def _built(names: Collection[str] | None) -> Any:
    """Builds the click group of `_app`."""
    return typer.main.get_command(_app(names))


def _group(name: str) -> typer.Typer:
    about, commands = (_LISTS if name in _LISTS else _GROUPS)[name]
    if name in _LISTS:
        listing = _function(about)
        group = typer.Typer(cls=Group, help=listing.__doc__)
        group.callback(invoke_without_command=True)(_alone(listing))
    else:
        group = typer.Typer(cls=Group, help=about, no_args_is_help=True)
        group.callback()(lambda: None)  # otherwise a single command would become the group itself
    for command, path in commands.items():
        group.command(command, cls=Command)(_function(path))
    return group


def _app(names: Collection[str] | None = None) -> typer.Typer:
    """Builds the command line: all of it, its options alone, or some commands of this distribution without them."""
    made = typer.Typer(
        name="aeenc", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    for path in _COMMANDS:
        if names is None or _name_of(path) in names:
            made.command(_name_of(path), cls=Command)(_function(path))
    for name in [*_GROUPS, *_LISTS] if names is None else [name for name in names if name in {*_GROUPS, *_LISTS}]:
        made.add_typer(_group(name), name=name)
    if names is None:
        _add_distributions(made)
    made.callback()((lambda: None) if names else options)
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
