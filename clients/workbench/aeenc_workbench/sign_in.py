"""Who uses the page: links that sign a person in once, and the session that a signed cookie holds.

    `aeenc-workbench` prints a link ─▶ the browser opens it ─▶ a session cookie (HttpOnly, SameSite=Strict)

The key that signs both is made at the first start and kept in a file that only its owner reads, so sessions survive a
restart. The cookie holds a name and roles, never a token of the services. A lead lets people in and revokes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from itsdangerous import BadSignature, SignatureExpired, URLSafeSerializer, URLSafeTimedSerializer
from starlette.requests import Request

from aeenc.errors import DataLoss, FailedPrecondition, PermissionDenied, Unauthenticated
from aeenc.files.whole import whole_file

Role = Literal["annotator", "adjudicator", "admin"]  # each may do what those before it may
ROLES: tuple[Role, ...] = get_args(Role)
LINK_S = 3600
SESSION_S = 30 * 24 * 3600
KEY_BYTES = 32
CSRF_HEADER = "x-csrf-token"


@dataclass(frozen=True)
class Person:
    """Who is signed in."""

    name: str
    role: Role = "annotator"

    def may(self, role: Role) -> bool:
        """Whether this person has the role, or one that includes it."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def must_be(self, role: Role) -> None:
        """Raises PermissionDenied unless the person has the role."""
        if not self.may(role):
            raise PermissionDenied(f"{self.name} is an {self.role}; ask for a link with the role {role}")


class Marks:
    """Names that were noted: files, which several processes share. They are forgotten after `kept_s`."""

    def __init__(self, folder: Path, kept_s: float) -> None:
        self._folder, self._kept_s = folder, kept_s

    def set(self, name: str) -> bool:
        """Notes a name. Of several attempts at once one is the first, and gets True: the file is new."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for mark in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                if mark.stat().st_mtime < time.time() - self._kept_s:
                    mark.unlink()
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def __contains__(self, name: str) -> bool:
        return (self._folder / name).exists()


@dataclass(frozen=True)
class Member:
    """Somebody who was let in with a role, when, and since when what they had before is worth nothing (0: never)."""

    name: str
    role: Role
    invited_at: float
    revoked_at: float = 0.0


class Members:
    """Who was let in, by links or by the organisation's sign-in: a file each, which several processes share.

    When somebody was revoked stands in a file of its own, so that nobody who signs in at that moment overwrites it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "members"

    def get(self, name: str) -> Member | None:
        """A member, or None for nobody known."""
        return self._read(self._path(name)) if self._path(name).exists() else None

    def all(self) -> list[Member]:
        """All members, by name."""
        return sorted(map(self._read, self._folder.glob("*.json")), key=lambda one: one.name)

    def let_in(self, person: Person) -> None:
        """Notes that a person was invited or has signed in."""
        _write(self._path(person.name), json.dumps([person.name, person.role, time.time()]))

    def revoke(self, name: str) -> None:
        """Ends what somebody has: links and sessions that were made until now."""
        _write(self._path(name).with_suffix(".revoked"), repr(time.time()))

    def revoked_at(self, name: str) -> float:
        """When what somebody had has ended; 0: never."""
        return _time_in(self._path(name).with_suffix(".revoked"))

    def _path(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    def _read(self, path: Path) -> Member:
        with _damage_named(path):
            name, role, at = json.loads(path.read_text(encoding="utf-8"))
            member = Member(str(name), ROLES[ROLES.index(role)], float(at))
        return replace(member, revoked_at=self.revoked_at(member.name))


class Links:
    """Links that sign a person in, each once and within an hour. `folder` keeps the key and which links were used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._used = Marks(folder / "used-links", 2 * LINK_S)
        self.key = _key(folder)
        self._signer = URLSafeTimedSerializer(self.key, salt="sign-in")
        self.leases = Leases(self.key)
        self._members = Members(folder)

    def make(self, person: Person) -> str:
        """Returns what follows `?link=` in the address."""
        self._members.let_in(person)
        return self._signer.dumps([person.name, person.role, secrets.token_urlsafe(12), time.time()])

    def use(self, link: str) -> Person:
        """Returns whom a link signs in. Raises Unauthenticated for one that is wrong, old or used."""
        remedy = "make another one: `aeenc-workbench --link --annotator NAME`"
        try:
            name, role, _, *made_at = self._signer.loads(link, max_age=LINK_S)
        except SignatureExpired:
            raise Unauthenticated(f"this link is older than an hour; {remedy}") from None
        except BadSignature:
            raise Unauthenticated(f"this link was not made by this workbench; {remedy}") from None
        if self._members.revoked_at(name) > sum(made_at):
            raise Unauthenticated(f"this link was revoked; {remedy}")
        if not self._used.set(hashlib.sha256(link.encode()).hexdigest()):
            raise Unauthenticated(f"this link has been used; {remedy}")
        return Person(name, role)


class Leases:
    """Ids of leases as browsers have them: signed, with the person who took the lease, so that no other uses it.

    The services cannot tell the people of a workbench apart: its credential acts for all of them.
    """

    def __init__(self, key: str) -> None:
        self._signer = URLSafeSerializer(key, salt="lease")

    def seal(self, lease_id: str, person: Person) -> str:
        """Returns what the browser of this person gets instead of the id."""
        return str(self._signer.dumps([lease_id, person.name]))

    def open(self, sealed: str, person: Person) -> str:
        """Returns the lease's id. Raises PermissionDenied for a lease of somebody else."""
        try:
            lease_id, name = self._signer.loads(sealed)
        except BadSignature:
            raise PermissionDenied("this workbench has not given this lease; reload the page", reason="LEASE") from None
        if name != person.name:
            raise PermissionDenied(f"this lease is not {person.name}'s; reload the page", reason="LEASE")
        return str(lease_id)


class Sessions:
    """Which sessions were ended by their people: a cookie that somebody has copied is worth nothing afterwards."""

    def __init__(self, folder: Path) -> None:
        self._ended = Marks(folder / "ended-sessions", SESSION_S)
        self._all_ended = folder / "all-sessions-ended"
        self.members = Members(folder)

    def end_all(self) -> None:
        """Ends the sessions of everybody that have begun until now."""
        _write(self._all_ended, repr(time.time()))

    def end(self, session: Mapping[str, Any]) -> None:
        """Ends a session for whoever has its cookie."""
        self._ended.set(session["id"])

    def lives(self, session: Mapping[str, Any]) -> bool:
        """Whether a session goes on."""
        since = max(_time_in(self._all_ended), self.members.revoked_at(session.get("name", "")))
        return since < session.get("since", 0.0) and time.time() < session["until"] and session["id"] not in self._ended


def sign_in(request: Request, person: Person, *, lasts_s: int = SESSION_S) -> None:
    """Begins a session."""
    request.app.state.sessions.members.let_in(person)
    request.session.clear()
    request.session.update(
        name=person.name,
        role=person.role,
        id=secrets.token_hex(16),
        csrf=secrets.token_urlsafe(24),
        until=int(time.time()) + lasts_s,
        since=time.time(),
    )


def person_of(request: Request) -> Person:
    """Returns who is signed in. Raises Unauthenticated for nobody, PermissionDenied for a forged request.

    What changes something must repeat the session's CSRF token in a header: another site can neither read nor set it.
    """
    session, state = request.session, request.app.state
    if "id" not in session or not state.sessions.lives(session):
        remedy, reason = "open the link that `aeenc up` or `aeenc workbench` has printed", ""
        if state.oidc:
            remedy, reason = "sign in by your organisation", "OIDC"  # for which the page offers this way in
        raise Unauthenticated(f"nobody is signed in; {remedy}", reason=reason)
    sent = request.headers.get(CSRF_HEADER, "")
    if request.method not in {"GET", "HEAD"} and not secrets.compare_digest(sent.encode(), session["csrf"].encode()):
        raise PermissionDenied(f"the header {CSRF_HEADER} is missing or wrong; reload the page", reason="CSRF")
    return Person(session["name"], session["role"])


def _time_in(path: Path) -> float:
    """Reads a time from a file; 0 if there is none."""
    with _damage_named(path), contextlib.suppress(FileNotFoundError):
        return float(path.read_text(encoding="ascii"))
    return 0.0


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        remedy = "restore it, or remove it and invite, revoke or end all sessions again"
        raise DataLoss(f"{path} is damaged ({error}); {remedy}") from error


def _write(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text)


def _key(folder: Path) -> str:
    """Reads the key, or makes it: as a whole or not at all, and of several processes one.

    Raises FailedPrecondition for a file that holds no whole key: anybody could make a session with an empty one.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "key"
    if not path.exists():
        made = folder / f".key-{secrets.token_hex(8)}"
        try:
            with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(made)
        finally:
            made.unlink(missing_ok=True)
    key = path.read_text(encoding="utf-8", errors="replace").strip()
    if len(key) < KEY_BYTES or not key.isascii():
        raise FailedPrecondition(f"{path} holds no whole key; remove it, and everybody signs in anew")
    return key
