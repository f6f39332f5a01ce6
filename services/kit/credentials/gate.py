"""The gate: from a header to a caller. It knows the two tokens of the settings and a file of named credentials.

The file is read again when it has changed. What is wrong with it is logged once and kept in `problem`, and the last
good credentials stay.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aeenc import errors
from services.kit.call import CALL
from services.kit.credentials.credential_file import Credential, HashedToken, load
from services.kit.credentials.roles import Role, role_for
from services.kit.credentials.watched_files import WatchedFiles
from services.kit.logs import get

log = get(__name__)

POLL_S = 1.0
BURST_S, LEAST_BURST = 0.25, 5.0  # how many calls may come at once: those of a quarter second, and at least five
_KEY_BYTES = 4  # of a hash: finds the candidates, which are then compared in constant time


def person_name(named: str) -> str:
    """Returns a person's name as it is kept: two ways to type it are one person. Case counts."""
    return unicodedata.normalize("NFC", named.strip())


class TokenBucket:
    """Holds up to `burst` units and gains `rate` units a second. It may be overdrawn, and then recovers first."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._level, self._seen = burst, clock()

    def take(self) -> float:
        """Takes one unit and returns 0, or takes none and returns the seconds until there is one."""
        if self._fill() >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self._rate

    def spend(self, units: float) -> None:
        """Takes units whose number is known only now, also those that are not there."""
        self._fill()
        self._level -= units

    def wait_s(self) -> float:
        """Returns the seconds until what was overdrawn is back; 0 when nothing is."""
        return max(0.0, -self._fill() / self._rate)

    def _fill(self) -> float:
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._seen) * self._rate)
        self._seen = now
        return self._level


@dataclass(frozen=True, eq=False)
class Caller:
    """Who makes a call. `name` is empty where no credential is needed; empty `corpora` means all.

    Where a request names a person, only those who act `on_behalf` of others may name anybody but themselves.
    """

    name: str = ""
    role: Role = Role.ADMIN
    corpora: frozenset[str] = frozenset()
    calls: TokenBucket | None = None
    tokens: TokenBucket | None = None
    on_behalf: bool = True

    def check_corpora(self, named: Iterable[str]) -> None:
        """Raises PermissionDenied for a corpus outside the credential's."""
        for corpus in named:
            if self.corpora and corpus not in self.corpora:
                raise errors.PermissionDenied(
                    f"corpus {corpus!r} is not open to {self.name!r}, which has {', '.join(sorted(self.corpora))}; "
                    "ask for a credential that names it"
                )

    def person(self, named: str, field: str) -> str:
        """Returns the person who acts: the one that the request names, or the caller. Raises PermissionDenied."""
        named = person_name(named)
        if self.on_behalf:
            return named
        if named and named != self.name:
            raise errors.PermissionDenied(
                f"{field}: {self.name!r} may not act as {named!r}; leave it out, or ask for a credential that may "
                "(`on_behalf`)"
            )
        return self.name

    def spend(self, tokens: int) -> None:
        """Charges the encoder's tokens that a call has cost."""
        if self.tokens is not None:
            self.tokens.spend(tokens)

    def wait_s(self) -> float:
        """Returns the seconds until the tokens already spent are within the quota."""
        return 0.0 if self.tokens is None else self.tokens.wait_s()

    def take(self) -> None:
        """Charges one call. Raises Overloaded with the time to wait when a quota is used up."""
        unit, wait_s = "tokens", self.wait_s()
        if not wait_s and self.calls is not None:
            unit, wait_s = "calls", self.calls.take()
        if wait_s:
            raise errors.Overloaded(
                f"the quota of {self.name!r} in {unit} a second is used up; come back in {wait_s:.3f} s, "
                "or ask for a larger quota",
                reason="QUOTA_EXCEEDED",
                retry_after_s=wait_s,
            )


ANYBODY = Caller()


def caller() -> Caller:
    """Returns who makes the call in work; of a refused call, a caller with the name alone, if it is known."""
    call = CALL.get()
    found: Caller = ANYBODY if call is None else call.caller
    return found


class Gate:
    """The credentials of a server. `admin_services` need the admin token, or the role that each RPC needs.

    Without tokens and file, everybody may call. Raises InvalidArgument for a wrong file.
    """

    def __init__(
        self,
        token: str | None = None,
        admin_token: str | None = None,
        *,
        path: Path | None = None,
        service: str = "",
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admin_services: set[str] = set()
        self.problem = ""  # why the file on disk is not in force
        self._token, self._admin_token = token, admin_token
        self._path, self._service, self._file = path, service, WatchedFiles(path)
        self._wall_clock, self._clock = wall_clock, clock
        self._known: dict[bytes, list[tuple[bytes, HashedToken, Credential, Caller]]] = {}
        self._callers: dict[str, tuple[Credential, Caller]] = {}
        self._open: set[Callable[[], None]] = set()  # calls that last
        if path is not None:
            self._use(load(path))

    def admit(self, method: str, authorization: str) -> Caller:
        """Charges a call to the quota of who makes it, whom it returns. Raises as `check`, and Overloaded beyond it."""
        caller = self.check(method, authorization)
        try:
            caller.take()
        except errors.Overloaded as error:
            error.metadata["caller"] = caller.name
            raise
        return caller

    def check(self, method: str, authorization: str) -> Caller:
        """Returns who may call a method with this header.

        Raises Unauthenticated without a valid credential, PermissionDenied for one that does not cover the method.
        """
        is_admin = method.split("/")[1] in self.admin_services
        needed = (self._admin_token or self._token) if is_admin else self._token
        if needed is None and self._path is None:
            return ANYBODY
        sent = authorization.removeprefix("Bearer ")
        if _same(sent, needed):
            return _ADMIN_TOKEN if is_admin and self._admin_token else _TOKEN
        if _same(sent, self._admin_token):
            return _ADMIN_TOKEN
        if is_admin and _same(sent, self._token):
            raise errors.PermissionDenied(
                f"{method} needs the admin token; the token sent opens the other services only"
            )
        is_something = bool(sent.strip())
        found = self._find(sent) if is_something and self._known else None
        if found is None:
            problem = "an unknown token was sent" if is_something else "no token was sent"
            raise errors.Unauthenticated(f"{problem}; send `authorization: Bearer <token>`")
        try:
            return self._check_named(method, *found)
        except errors.AeencError as error:
            error.metadata["caller"] = found[1].name
            raise

    def reload(self) -> bool:
        """Reads the file again if it has changed; True if its content is now in force. It may run in a thread."""
        if self._path is None or not self._file.have_changed():
            return False
        problem = ""
        try:
            self._use(load(self._path))
        except errors.InvalidArgument as error:
            problem = f"the tokens file is not used, the last good one stays: {error.message}"
            if isinstance(error.__cause__, OSError):  # the disk's fault, or too many open files
                self._file.forget()  # the next look tries again
        if not problem:
            log.info("the tokens file was read again", path=str(self._path), credentials=len(self._callers))
        elif problem != self.problem:
            log.error(problem)
        self.problem = problem
        return not problem

    async def follow(self) -> None:
        """Reads the file again whenever it has changed, and has open calls checked again, until cancelled."""
        while self._path is not None:
            await asyncio.sleep(POLL_S)
            await asyncio.to_thread(self.reload)
            self.check_open()

    def check_open(self) -> None:
        """Has open calls checked again."""
        for check_again in list(self._open):
            check_again()

    @contextmanager
    def watching(self, check_again: Callable[[], None]) -> Iterator[None]:
        """Has `check_open` call `check_again` while the body runs: credentials change, and expire."""
        self._open.add(check_again)
        try:
            yield
        finally:
            self._open.discard(check_again)

    def _check_named(self, method: str, token: HashedToken, credential: Credential, caller: Caller) -> Caller:
        name, now = credential.name, self._wall_clock()
        for until in (credential.expires, token.until):
            if until is not None and now >= until:
                raise errors.Unauthenticated(f"the token of {name!r} expired at {until.isoformat()}; ask for a new one")
        if token.since is not None and now < token.since:
            raise errors.Unauthenticated(f"the token of {name!r} is valid from {token.since.isoformat()}; wait for it")
        if credential.services and self._service not in credential.services:
            allowed = ", ".join(credential.services)
            raise errors.PermissionDenied(
                f"the {self._service} is not open to {name!r}, which has {allowed}; ask for a credential that names it"
            )
        if (needed := role_for(method)) > caller.role:
            raise errors.PermissionDenied(
                f"{method} needs the role {needed.name.lower()}, {name!r} has {credential.role}; "
                "ask for a credential with that role"
            )
        return caller

    def _find(self, sent: str) -> tuple[HashedToken, Credential, Caller] | None:
        digest = hashlib.sha256(sent.encode()).digest()
        for known, token, credential, caller in self._known.get(digest[:_KEY_BYTES], ()):
            if secrets.compare_digest(known, digest):
                return token, credential, caller
        return None

    def _use(self, credentials: tuple[Credential, ...]) -> None:
        """Puts credentials into force. Who keeps their quota keeps what they have used of it."""
        self._callers = {one.name: (one, self._caller_of(one)) for one in credentials}
        known: dict[bytes, list[tuple[bytes, HashedToken, Credential, Caller]]] = {}
        for one, caller in self._callers.values():
            for token in one.hashes:
                digest = bytes.fromhex(token.sha256)
                known.setdefault(digest[:_KEY_BYTES], []).append((digest, token, one, caller))
        self._known = known  # at once: calls are admitted meanwhile

    def _caller_of(self, new: Credential) -> Caller:
        old, before = self._callers.get(new.name, (None, ANYBODY))
        calls = tokens = None
        if rate := new.calls_per_s:
            kept = before.calls if old and old.calls_per_s == rate else None
            calls = kept or TokenBucket(rate, max(LEAST_BURST, BURST_S * rate), self._clock)
        if rate := new.tokens_per_s:
            kept = before.tokens if old and old.tokens_per_s == rate else None
            tokens = kept or TokenBucket(rate, rate, self._clock)
        role, corpora = Role[new.role.upper()], frozenset(new.corpora)
        return Caller(new.name, role, corpora, calls, tokens, new.on_behalf or role is Role.ADMIN)


_TOKEN, _ADMIN_TOKEN = Caller("token"), Caller("admin-token")
_SHARED = {ANYBODY, _TOKEN, _ADMIN_TOKEN}  # many people and processes call by these


def origin(context: Any) -> str:
    """Returns with whom a call shares what each caller has a part of: its named credential, else its connection."""
    found = caller()
    return str(context.peer()) if found in _SHARED else found.name


def _same(sent: str, known: str | None) -> bool:
    """Whether a token was sent and is the one that is known; nothing is like nothing."""
    return bool(known and known.strip()) and secrets.compare_digest(sent.encode(), str(known).encode())
