"""`aeenc token`: makes, rotates, lists and revokes named credentials in a tokens file. No service need run.

A token is shown once, when it is made; the file gets its hash. Services read a changed file within a second or two.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from aeenc.cli.main import Group
from aeenc.cli.output import output_of, table
from aeenc.errors import AlreadyExists, InvalidArgument, NotFound
from services.kit.credentials.credential_file import (
    HEAD,
    Credential,
    HashedToken,
    hash_of,
    load,
    new_token,
    parse,
    render,
)
from services.store.files import atomic_write

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
File = Annotated[Path, typer.Option(envvar="AEENC_TOKENS_FILE", help="The tokens file.")]
Name = Annotated[str, typer.Argument(help="The name of the caller.")]


def new(
    context: typer.Context,
    name: Name,
    role: Annotated[Literal["read", "annotate", "adjudicate", "admin"], typer.Option(help="What they may do.")],
    service: Annotated[list[str] | None, typer.Option(help="Only this service; repeatable.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="Only this corpus; repeatable.")] = None,
    quota: Annotated[str | None, typer.Option(help="Calls a second, such as 100/s.")] = None,
    token_quota: Annotated[str | None, typer.Option(help="The encoder's tokens a second, such as 20000/s.")] = None,
    expires: Annotated[str | None, typer.Option(help="When it ends: 90d, 12h, or 2027-01-31.")] = None,
    on_behalf: Annotated[bool, typer.Option(help="May name other people as annotators.")] = False,
    note: Annotated[str, typer.Option(help="A remark for people.")] = "",
    file: Annotated[
        Path | None, typer.Option(envvar="AEENC_TOKENS_FILE", help="The tokens file; none: to stdout.")
    ] = None,
) -> None:
    """Makes a credential and shows its token once.

    With --file the credential goes into the file and the token to stdout. Without, the credential goes to stdout and
    the token to stderr: aeenc token new lab --role read >> tokens.toml
    """
    out, token = output_of(context), new_token()
    fields = {
        "name": name,
        "role": role,
        **({"services": service} if service else {}),
        **({"corpora": corpus} if corpus else {}),
        "calls_per_s": _rate(quota, "--quota"),
        "tokens_per_s": _rate(token_quota, "--token-quota"),
        "expires": _moment(expires, "--expires"),
        "on_behalf": on_behalf,
        "note": note,
        "hashes": [HashedToken(sha256=hash_of(token))],
    }
    try:
        made = Credential.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise InvalidArgument(f"{problem['loc'][0]} '{problem['input']}': {problem['msg']}; correct it") from None
    if file is None:
        out.note(f"the token of {name}, shown only now: {token}")
        typer.echo(render(made).lstrip())
        return
    with _locked(file) as known:
        if any(one.name == name for one in known):
            raise AlreadyExists(f"{file} has {name!r} already; use `aeenc token rotate {name}`, or another name")
        _write(file, (file.read_text(encoding="utf-8") if file.exists() else HEAD) + render(made))
    out.note(f"{file} has {name}; the token is shown only now")
    out.result({"name": name, "token": token}, token)


def rotate(
    context: typer.Context,
    name: Name,
    file: File,
    overlap: Annotated[str, typer.Option(help="How long the tokens before stay valid: 7d, 12h, 30m; 0s ends them.")] = (
        "7d"
    ),
) -> None:
    """Adds a new token to a credential and shows it once; those before end after the overlap."""
    out, token, until = output_of(context), new_token(), _moment(overlap, "--overlap")
    assert until is not None
    with _locked(file) as known:
        old = _one(known, name, file)
        now = datetime.now(UTC)
        kept = [one for one in old.hashes if one.until is None or one.until > now]
        ending = [one.model_copy(update={"until": min(one.until or until, until)}) for one in kept]
        hashes = tuple(ending) if until > now else ()
        changed = old.model_copy(update={"hashes": (*hashes, HashedToken(sha256=hash_of(token)))})
        _write(file, _all([changed if one.name == name else one for one in known]))
    out.note(f"the tokens of {name} before this one end at {until.isoformat(timespec='seconds')}")
    out.result({"name": name, "token": token, "others_until": until.isoformat()}, token)


def show(context: typer.Context, file: File) -> None:
    """Lists the credentials of a file."""
    known = load(file)
    rows = [
        (
            one.name,
            one.role,
            ", ".join(one.services) or "all",
            ", ".join(one.corpora) or "all",
            "" if one.calls_per_s is None else f"{one.calls_per_s:g}/s",
            "" if one.tokens_per_s is None else f"{one.tokens_per_s:g}/s",
            one.expires.isoformat() if one.expires else "never",
            len(one.hashes),
            one.note,
        )
        for one in known
    ]
    columns = ["name", "role", "services", "corpora", "calls", "tokens", "expires", "hashes", "note"]
    values: dict[str, Any] = {"credentials": [one.model_dump(mode="json", by_alias=True) for one in known]}
    output_of(context).result(values, table(columns, rows))


def revoke(context: typer.Context, name: Name, file: File) -> None:
    """Removes a credential with all its tokens."""
    with _locked(file) as known:
        _one(known, name, file)
        _write(file, _all([one for one in known if one.name != name]))
    output_of(context).result({"revoked": name}, f"{name} is revoked; services notice within a second or two")


def register(app: typer.Typer) -> None:
    """Named credentials: who may call the services."""
    group = typer.Typer(cls=Group, help=register.__doc__, no_args_is_help=True)
    for name, command in (("new", new), ("rotate", rotate), ("list", show), ("revoke", revoke)):
        group.command(name)(command)
    app.add_typer(group, name="token")


def _one(known: Sequence[Credential], name: str, file: Path) -> Credential:
    found = next((one for one in known if one.name == name), None)
    if found is None:
        raise NotFound(f"{file} has no credential {name!r}; `aeenc token list` shows them")
    return found


@contextmanager
def _locked(file: Path) -> Iterator[tuple[Credential, ...]]:
    """Reads the credentials of a file; nobody else changes it meanwhile."""
    directory = os.open(file.resolve().parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield load(file) if file.exists() else ()
    finally:
        os.close(directory)


def _all(credentials: Sequence[Credential]) -> str:
    return HEAD + "".join(map(render, credentials))


def _write(file: Path, text: str) -> None:
    parse(text, str(file))
    atomic_write(file.resolve(), text.encode())


def _rate(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text.removesuffix("/s"))
    except ValueError:
        raise InvalidArgument(f"{option} {text!r} is not a number a second, such as 100/s") from None


def _moment(text: str | None, option: str) -> datetime | None:
    """Reads a moment, or a time from now on; dates are in UTC."""
    if text is None:
        return None
    if span := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return (datetime.now(UTC) + timedelta(**{_UNITS[span[2]]: int(span[1])})).replace(microsecond=0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{option} {text!r} is neither a time such as 90d nor a date such as 2027-01-31"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
