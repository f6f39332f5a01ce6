"""The application: the page, signing in, the calls of the page, and the headers that keep other sites out."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import StringConstraints
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aeenc import AsyncClient
from aeenc.adapters.http import error_handlers
from aeenc.errors import InvalidArgument, NotFound, PermissionDenied, TooLarge, Unauthenticated
from aeenc_workbench import calls, plain, training
from aeenc_workbench.events import Events
from aeenc_workbench.oidc import Oidc
from aeenc_workbench.sign_in import SESSION_S, Links, Members, Person, Role, Sessions, person_of, sign_in

PAGE = Path(__file__).parent / "page"
BODY_BYTES = 1024 * 1024
DOOR = """<!doctype html><html lang="en"><title>AE-Enc workbench</title>
<meta name="viewport" content="width=device-width">
<link rel="stylesheet" href="/assets/workbench.css"><main class="wide"><h1>AE-Enc workbench</h1>{}</main></html>"""
ENTER = DOOR.format('<form method="post"><button class="primary" autofocus>Sign in</button></form>')
HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}


def make_app(
    links: Links, *, secure: bool = False, gold: Iterable[calls.Gold] = (), oidc: Oidc | None = None, **targets: Any
) -> Starlette:
    """Makes the ASGI application. `targets` are the options of `aeenc.AsyncClient`.

    With `oidc` people sign in by their organisation's provider, besides links. With `secure` browsers send the session
    over TLS only. `gold` queries measure what was trained. It runs whether or
    not the services do.
    """
    sessions = Sessions(links.folder)

    @asynccontextmanager
    async def connected(app: Starlette) -> AsyncIterator[None]:
        async with AsyncClient(**targets) as client:
            app.state.client = client
            app.state.links, app.state.leases = links, links.leases
            app.state.sessions = sessions
            app.state.oidc = oidc is not None
            app.state.gold = list(gold)
            app.state.events = Events(client)
            app.state.events.start()
            yield
            await app.state.events.stop()

    async def enter(request: Request) -> Response:
        if request.method != "POST":  # a preview, or a scanner of mails: it must not use the link up
            return HTMLResponse(ENTER)
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise PermissionDenied("another site sent this; open the link itself", reason="CSRF")
        try:
            person = links.use(request.query_params.get("link", ""))
        except Unauthenticated as error:
            if request.session and sessions.lives(request.session):
                return RedirectResponse("/", 303)
            remedy = "This link does not sign you in; ask whoever has sent it for a new one."
            return HTMLResponse(DOOR.format(f"<p>{remedy}</p><p>{error.message}</p>"), 401)
        sign_in(request, person)
        return RedirectResponse("/", 303)

    async def leave(request: Request) -> Response:
        person_of(request)
        sessions.end(request.session)
        request.session.clear()
        return Response(status_code=204)

    async def page(_: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})

    return Starlette(
        routes=[
            Route("/", page),
            Route("/sign-in", enter, methods=["GET", "POST"]),
            Route("/sign-out", leave, methods=["POST"]),
            *(oidc.routes() if oidc else ()),
            *calls.routes(),
            *training.routes(),
            *calls.make_routes({"/api/people": people}, {"/api/invite": invite, "/api/revoke": revoke}),
            Mount("/assets", StaticFiles(directory=PAGE / "assets", check_dir=False)),
        ],
        middleware=[
            Middleware(Shield),
            Middleware(
                SessionMiddleware,
                secret_key=links.key,
                session_cookie="aeenc_workbench",
                max_age=SESSION_S,
                same_site="strict",
                https_only=secure,
            ),
        ],
        exception_handlers={**error_handlers(plain.respond), Exception: plain.on_bug},
        lifespan=connected,
    )


class InviteBody(calls.Body):
    """Whom to invite."""

    name: Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[^\x00-\x1f\x7f]{1,256}$")]
    role: Role = "annotator"


async def people(call: calls.Call) -> Any:
    """Everybody who was let in."""
    call.person.must_be("adjudicator")
    return call.request.app.state.sessions.members.all()


async def invite(call: calls.Call) -> Any:
    """Makes a link for somebody with a role up to one's own; a lower role than they had ends what they have."""
    call.person.must_be("adjudicator")
    body = await call.body(InviteBody)
    members: Members = call.request.app.state.sessions.members
    invited, known = Person(body.name, body.role), members.get(body.name)
    call.person.must_be(body.role)
    if known:
        call.person.must_be(known.role)  # nobody signs in under the name of somebody above them
        if not invited.may(known.role):
            members.revoke(known.name)
    return {"link": call.request.app.state.links.make(invited)}


async def revoke(call: calls.Call) -> Any:
    """Ends somebody's sessions and links."""
    call.person.must_be("adjudicator")
    body = await call.body(InviteBody)
    members: Members = call.request.app.state.sessions.members
    known = members.get(body.name)
    if known is None:
        raise NotFound(f"{body.name} was never invited; the page People names who was")
    call.person.must_be(known.role)
    if known.name == call.person.name:
        raise InvalidArgument.field("name", "is yours; sign out instead")
    members.revoke(known.name)


class Shield:
    """Adds the security headers to every answer, and refuses bodies beyond BODY_BYTES."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        is_length = re.fullmatch(rb"[0-9]{1,18}", length)
        too_large = headers.get(b"transfer-encoding") or not is_length or int(length) > BODY_BYTES

        async def shielded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items()]
            await send(message)

        if too_large:
            problem = f"a body needs a content-length of at most {BODY_BYTES:,} bytes"
            await plain.respond(None, TooLarge(problem), 413)(scope, receive, shielded)
        else:
            await self._app(scope, receive, shielded)
