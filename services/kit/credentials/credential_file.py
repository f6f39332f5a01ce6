"""The file of named credentials: TOML that holds hashes of tokens, never a token.

A token is 256 random bits, so SHA-256 without salt is enough: nobody can try them all, and no list has them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from aeenc import errors

TOKEN_BYTES = 32
PREFIX = "aeenc_"  # by which scanners for secrets can find a token
RESERVED = {"token", "admin-token"}  # how logs and metrics call the two tokens of the settings
HEAD = "# Named credentials of the services (docs/credentials.md). Tokens are not here, only their hashes.\n"


def _not_reserved(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{name!r} names a token of the settings; choose another name")
    return name


def _of_something(sha256: str) -> str:
    if sha256 == hash_of(""):
        raise ValueError("is the hash of nothing; give that of a token")
    return sha256


def _not_empty(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError("is empty; name some, or leave it out for all")
    return names


def _in_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{at} is not in the years 1 to 9999 of UTC; give a moment within them") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"), AfterValidator(_not_reserved)]
ServiceName = Literal["encoder", "index", "sampler", "trainer"]
_STRICT = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class HashedToken(BaseModel):
    """One token of a credential, valid from `since` (inclusive) until `until` (exclusive); None: no bound."""

    model_config = _STRICT

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$"), AfterValidator(_of_something)]
    since: Moment | None = Field(None, alias="from")
    until: Moment | None = None


class Credential(BaseModel):
    """A caller's name, what they may do, and how often. `services` and `corpora` that are left out mean all.

    With `on_behalf` they may name other people as annotators, as a web application does for those who use it.
    """

    model_config = _STRICT

    name: Name
    role: Literal["read", "annotate", "adjudicate", "admin"]
    services: Annotated[tuple[ServiceName, ...], AfterValidator(_not_empty)] = ()
    corpora: Annotated[tuple[str, ...], AfterValidator(_not_empty)] = ()
    calls_per_s: float | None = Field(None, gt=0, le=1e6, allow_inf_nan=False)
    tokens_per_s: float | None = Field(None, gt=0, le=1e9, allow_inf_nan=False)
    expires: Moment | None = None
    on_behalf: bool = False
    note: str = ""
    hashes: tuple[HashedToken, ...] = Field(min_length=1)


class _File(BaseModel):
    model_config = _STRICT

    credential: tuple[Credential, ...] = ()


def new_token() -> str:
    """Returns a fresh token of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> str:
    """Returns what the file holds of a token: its SHA-256 in hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def parse(text: str, where: str) -> tuple[Credential, ...]:
    """Reads credentials from TOML. `where` names the source.

    Raises InvalidArgument for what is not TOML, a wrong or unknown field, a name twice, or a hash under two names.
    """
    try:
        found = _File.model_validate(tomllib.loads(text)).credential
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise errors.InvalidArgument(f"{where} is not TOML: {error}; correct it") from None
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"])
        raise errors.InvalidArgument(f"{where}: {field}: {problem['msg']}; correct it") from None
    names = [one.name for one in found]
    hashes = [token.sha256 for one in found for token in one.hashes]
    for what, values in (("the name", names), ("the hash", hashes)):
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise errors.InvalidArgument(f"{where}: {what} {twice[0]!r} stands there twice; remove one")
    return found


def load(path: Path) -> tuple[Credential, ...]:
    """Reads a file. Raises InvalidArgument as `parse` does, and for a file that cannot be read."""
    try:
        if path.is_char_device():  # some never end
            raise errors.InvalidArgument(f"{path} is a device; give a TOML file of credentials")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InvalidArgument(f"{path} cannot be read ({error}); give a TOML file of credentials") from error
    return parse(text, str(path))


def render(credential: Credential) -> str:
    """Returns a credential as TOML, to be appended to a file or written again."""
    lines = ["", "[[credential]]"]
    for name, value in credential.model_dump(exclude={"hashes"}).items():
        if value not in (None, (), "", False):
            lines.append(f"{name} = {_toml(value)}")
    hashes = [
        "{ " + ", ".join(f"{key} = {_toml(value)}" for key, value in one.items()) + " }"
        for one in (token.model_dump(by_alias=True, exclude_none=True) for token in credential.hashes)
    ]
    return "\n".join([*lines, f"hashes = [{', '.join(hashes)}]", ""])


def _toml(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
