"""Who may come: by a link, until a lead revokes it, or by an OpenID provider, a small one over loopback that checks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import uvicorn
from aeenc_workbench.app import make_app
from aeenc_workbench.oidc import Oidc, Provider
from aeenc_workbench.settings import WorkbenchSettings
from aeenc_workbench.sign_in import Links, Person, Sessions
from browser.test_annotate import POST
from joserfc import jwt
from joserfc.jwk import RSAKey
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

from aeenc import errors
from aeenc.errors import FailedPrecondition
from services.launcher.processes import free_port
from support.waiting import eventually

pytestmark = pytest.mark.browser
CLIENT, SECRET, URL = "workbench", "s3cret", "http://workbench.test"


@dataclass
class SmallProvider:
    """Signs in whoever comes, with these claims. `spoils` changes the ID token's claims before it is signed."""

    issuer: str
    claims: dict[str, Any]
    key: Any
    signs_with: Any = None
    spoils: dict[str, Any] = field(default_factory=dict)
    found: Any = None  # what it says of itself, where that is not what it should be
    codes: dict[str, tuple[str, str]] = field(default_factory=dict)  # code -> nonce, challenge

    def app(self) -> Any:
        async def metadata(_: Any) -> Any:
            places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
            whole = {"issuer": self.issuer, **{k: f"{self.issuer}/{v}" for k, v in places.items()}}
            return JSONResponse(whole if self.found is None else self.found)

        async def authorize(request: Any) -> Any:
            asked = request.query_params
            assert (asked["client_id"], asked["response_type"]) == (CLIENT, "code")
            assert (asked["redirect_uri"], asked["code_challenge_method"]) == (f"{URL}/oidc/callback", "S256")
            code = secrets.token_urlsafe(8)
            self.codes[code] = asked["nonce"], asked["code_challenge"]
            return RedirectResponse(f"{asked['redirect_uri']}?code={code}&state={asked['state']}", 303)

        async def token(request: Any) -> Any:
            sent = {name: one[0] for name, one in parse_qs((await request.body()).decode()).items()}
            basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            nonce, challenge = self.codes.pop(sent["code"])
            made = base64.urlsafe_b64encode(hashlib.sha256(sent["code_verifier"].encode()).digest()).decode()
            if request.headers["authorization"] != f"Basic {basic}" or made.rstrip("=") != challenge:
                return JSONResponse({"error": "invalid_grant"}, 400)
            now = int(time.time())
            claims = {"iss": self.issuer, "aud": CLIENT, "sub": "1", "iat": now, "exp": now + 300, "nonce": nonce}
            signed = jwt.encode(
                {"alg": "RS256", "kid": "k"}, {**claims, **self.claims, **self.spoils}, self.signs_with or self.key
            )
            return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": signed})

        async def jwks(_: Any) -> Any:
            return JSONResponse({"keys": [{**self.key.as_dict(private=False), "kid": "k"}]})

        routes = [("/.well-known/openid-configuration", metadata), ("/authorize", authorize), ("/jwks", jwks)]
        return Starlette(routes=[*(Route(*one) for one in routes), Route("/token", token, methods=["POST"])])


@asynccontextmanager
async def provided(folder: Path, **claims: Any) -> AsyncIterator[tuple[SmallProvider, Any]]:
    """A provider, and a browser's client of a workbench that knows it."""
    port = free_port(set())
    issuer = f"http://127.0.0.1:{port}"
    there = SmallProvider(
        issuer, {"preferred_username": "ann", "roles": ["leads"], **claims}, RSAKey.generate_key(2048)
    )
    server = uvicorn.Server(uvicorn.Config(there.app(), port=port, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: asyncio.sleep(0, server.started))
    links = Links(folder)
    known = Provider(issuer, CLIENT, SECRET, URL, {"people": "annotator", "leads": "adjudicator"})
    app = make_app(
        links, oidc=Oidc(known, links.key, secure=False, session_s=60), sampler="127.0.0.1:1", index="127.0.0.1:1"
    )
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=URL) as browser:
        yield there, browser
    server.should_exit = True
    await serving


async def sign_in(browser: Any) -> Any:
    """Goes where the workbench and the provider send a browser; returns the workbench's last answer."""
    begun = await browser.get("/oidc/sign-in")
    assert begun.status_code == 303
    async with httpx.AsyncClient() as other:
        back = (await other.get(begun.headers["location"])).headers["location"]
    assert back.startswith(f"{URL}/oidc/callback")
    parts = urlsplit(back)
    return await browser.get(f"{parts.path}?{parts.query}")


async def test_somebody_signs_in_by_their_organisation_and_out_for_good(tmp_path: Path) -> None:
    async with provided(tmp_path) as (_, browser):
        refused = await browser.get("/api/me")
        assert (refused.status_code, refused.json()["reason"]) == (401, "OIDC")
        attempt = (await browser.get("/oidc/sign-in")).headers["set-cookie"].lower()
        assert all(word in attempt for word in ("httponly", "samesite=lax", "path=/oidc", "max-age=600"))
        ended = await sign_in(browser)
        assert (ended.status_code, ended.headers["location"]) == (303, "/")
        [session] = [one for one in ended.headers.get_list("set-cookie") if "aeenc_workbench=" in one]
        assert "samesite=strict" in session.lower()
        me = (await browser.get("/api/me")).json()
        assert (me["name"], me["role"]) == ("ann", "adjudicator")
        copied = dict(browser.cookies)
        assert (await browser.post("/sign-out", headers={"x-csrf-token": me["csrf"]})).status_code == 204
        browser.cookies.update(copied)
        assert (await browser.get("/api/me")).status_code == 401, "a copied cookie outlives the session"


@pytest.mark.parametrize(
    ("spoiled", "status"),
    [
        ({"iss": "http://elsewhere"}, 401),
        ({"aud": "another"}, 401),
        ({"nonce": "other"}, 401),
        ({"exp": 1}, 401),
        ({"preferred_username": ""}, 403),
        ({"roles": ["strangers"]}, 403),
        ({"roles": "leads"}, 303),
        ({"roles": None}, 403),
        ({"roles": [{"name": "leads"}]}, 403),
        ({"aud": [CLIENT, "another"]}, 401),
        ({"aud": [CLIENT, "another"], "azp": "another"}, 401),
        ({"aud": [CLIENT, "another"], "azp": CLIENT}, 303),
        ({"azp": "another"}, 401),
    ],
    ids=str,
)
async def test_claims_that_do_not_hold_sign_nobody_in(tmp_path: Path, spoiled: dict[str, Any], status: int) -> None:
    async with provided(tmp_path) as (there, browser):
        there.spoils = spoiled
        ended = await sign_in(browser)
        assert ended.status_code == status
        assert (await browser.get("/api/me")).status_code == (200 if status == 303 else 401)


@pytest.mark.parametrize(
    ("claims", "name", "role"),
    [
        ({"realm_access": {"roles": ["leads"]}}, "realm_access.roles", "adjudicator"),
        ({"a.b": ["leads"], "a": {"b": ["people"]}}, "a.b", "adjudicator"),
        ({"https://example.org/roles": "people"}, "https://example.org/roles", "annotator"),
        ({"realm_access": ["leads"]}, "realm_access.roles", None),
        ({}, "realm_access.roles", None),
    ],
)
def test_roles_are_found_within_a_claim(claims: dict[str, Any], name: str, role: str | None) -> None:
    provider = Provider("", CLIENT, SECRET, URL, {"people": "annotator", "leads": "adjudicator"}, roles_claim=name)
    try:
        found = provider.person({"preferred_username": "ann", **claims}).role
    except errors.PermissionDenied:
        found = None
    assert found == role


async def test_a_token_of_another_key_signs_nobody_in(tmp_path: Path) -> None:
    async with provided(tmp_path) as (there, browser):
        there.signs_with = RSAKey.generate_key(2048)
        assert (await sign_in(browser)).status_code == 401


async def test_an_answer_to_somebody_elses_attempt_signs_nobody_in(tmp_path: Path) -> None:
    async with provided(tmp_path) as (_, browser):
        await browser.get("/oidc/sign-in")
        forged = await browser.get("/oidc/callback?code=c&state=forged")
        assert (forged.status_code, "another attempt" in forged.text) == (401, True)
        browser.cookies.clear()
        assert (await browser.get("/oidc/callback?code=c&state=s")).status_code == 401


async def test_a_provider_that_is_away_is_said(tmp_path: Path) -> None:
    async with provided(tmp_path) as (there, browser):
        there.issuer = "http://moved"
        told = await browser.get("/oidc/sign-in")
        assert (told.status_code, "calls itself" in told.text) == (503, True)


@pytest.mark.parametrize("found", [[], {}, {"authorization_endpoint": 7}])
async def test_a_provider_that_names_no_endpoints_is_said(tmp_path: Path, found: Any) -> None:
    async with provided(tmp_path) as (there, browser):
        there.found = found if isinstance(found, list) else {"issuer": there.issuer, **found}
        told = await browser.get("/oidc/sign-in")
        assert (told.status_code, "openid-configuration" in told.text) == (503, True)


@pytest.mark.parametrize("content", [b"", b"  \n", b"short", b"\xff" * 64])
def test_a_file_without_a_whole_key_is_refused_by_its_path(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(FailedPrecondition, match=r"key holds no whole key; remove it"):
        Links(tmp_path)


def test_a_key_that_could_not_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            Links(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(Links(tmp_path).key) >= 32


def test_several_processes_that_start_at_once_have_one_key_that_its_owner_alone_reads(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: Links(tmp_path).key, range(32)))
    assert len(keys) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert Links(tmp_path).use(Links(tmp_path).make(Person("ann"))) == Person("ann")


def test_blank_secrets_stop_the_start(tmp_path: Path) -> None:
    for token in (" ", "se cret"):
        with pytest.raises(ValidationError, match="is blank"):
            WorkbenchSettings(token=token)
    (tmp_path / "secret").write_text("\n")
    settings = WorkbenchSettings(
        oidc_issuer="https://id.example",
        oidc_client_id="workbench",
        oidc_client_secret_file=tmp_path / "secret",
        url="https://workbench.example",
    )
    with pytest.raises(FailedPrecondition, match="secret is empty"):
        _ = settings.provider


async def test_a_lead_invites_by_a_link_and_revokes_what_somebody_has(bench: Any) -> None:
    async with bench() as at:
        lead = await at.window("lea", "adjudicator")
        await lead.get_by_role("link", name="People").click()
        assert await lead.get_by_label("Role").locator("option").all_inner_texts() == ["annotator", "adjudicator"]
        await lead.get_by_label("Name").fill("ann")
        await lead.get_by_role("button", name="Make a link").click()
        link = await lead.get_by_label("Link for ann").input_value()
        assert link.startswith(f"{at.url}/sign-in?link=")
        waiting = at.links.make(Person("ann"))
        async with httpx.AsyncClient(base_url=at.url) as ann:
            assert (await ann.post(link)).status_code == 303
            assert (await ann.get("/api/me")).json()["name"] == "ann"
            await lead.get_by_role("row", name="ann").get_by_role("button", name="Revoke").click()
            await lead.get_by_role("row", name="ann").get_by_text("revoked").wait_for()
            assert (await ann.get("/api/me")).status_code == 401, "the session"
            refused = await ann.post(f"/sign-in?link={waiting}")
            assert refused.status_code == 401, "a link that was not used yet"
            assert "was revoked" in refused.text
            await lead.get_by_role("row", name="ann").get_by_role("button", name="New link").click()
            again = await lead.get_by_label("Link for ann").input_value()
            assert (await ann.post(again)).status_code == 303


async def test_nobody_invites_or_revokes_above_themselves_or_signs_in_as_somebody_above(bench: Any) -> None:
    async with bench() as at:
        await at.window("chief", "admin")
        lead, ann = await at.window("lea", "adjudicator"), await at.window("ann")
        tried = [
            ("invite", {"name": "eve", "role": "admin"}, 403),
            ("invite", {"name": "chief", "role": "annotator"}, 403),
            ("revoke", {"name": "chief"}, 403),
            ("revoke", {"name": "lea"}, 400),
            ("revoke", {"name": "nobody"}, 404),
            ("invite", {"name": " \n", "role": "annotator"}, 400),
            ("invite", {"name": "x" * 257, "role": "annotator"}, 400),
            ("invite", {"name": "eve", "role": "adjudicator"}, 200),
        ]
        for call, body, status in tried:
            assert await lead.evaluate(POST, [f"/api/{call}", body]) == status, (call, body)
            assert await ann.evaluate(POST, [f"/api/{call}", body]) == 403
        assert await ann.evaluate("fetch('/api/people').then((answer) => answer.status)") == 403
        eve = f"/sign-in?link={at.links.make(Person('eve', 'adjudicator'))}"
        async with httpx.AsyncClient(base_url=at.url) as http:
            assert (await http.post(eve)).status_code == 303
            assert await lead.evaluate(POST, ["/api/invite", {"name": "eve", "role": "annotator"}]) == 200
            assert (await http.get("/api/me")).status_code == 401, "a lower role ends what the higher one had"


@pytest.mark.parametrize("damaged", ["[]", "5", "{", '["ann", "king", 1]', '["ann", "annotator", null]'])
def test_a_damaged_file_of_a_member_is_named(tmp_path: Path, damaged: str) -> None:
    sessions = Sessions(tmp_path)
    sessions.members.let_in(Person("ann"))
    [path] = tmp_path.rglob("*.json")
    path.write_text(damaged)
    path.with_suffix(".revoked").write_text("[]")
    for read in (sessions.members.all, lambda: sessions.members.get("ann"), lambda: sessions.lives({"name": "ann"})):
        with pytest.raises(errors.DataLoss, match=rf"{path.stem}\.\w+ is damaged .*; restore it, or remove it"):
            read()
