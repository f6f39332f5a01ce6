"""Signing in by an OpenID provider: authorisation code with PKCE, state and nonce (OpenID Connect Core 1.0).

    /oidc/sign-in ─▶ provider ─▶ /oidc/callback ─▶ code for token ─▶ ID token checked ─▶ session

What belongs to one attempt (state, nonce, verifier) is in a signed cookie of its own, for ten minutes: the session's
cookie is SameSite=Strict, and browsers leave it out when the provider sends them back. The provider's tokens are not
kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import httpx
from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from aeenc.errors import AeencError, PermissionDenied, Unauthenticated, Unavailable
from aeenc_workbench.sign_in import ROLES, Person, Role, sign_in

COOKIE = "aeenc_workbench_oidc"
ATTEMPT_S = 600
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
TIMEOUT_S = 10.0
ALGORITHMS = ["RS256", "ES256", "PS256", "EdDSA"]


@dataclass(frozen=True)
class Provider:
    """An OpenID provider, and how its claims name people and roles.

    `roles` maps a value of the claim `roles_claim` to a role here; of several the greatest counts. Dots lead into a
    claim: `realm_access.roles`. `url` is the address
    at which people reach the workbench.
    """

    issuer: str
    client_id: str
    client_secret: str
    url: str
    roles: Mapping[str, Role]
    roles_claim: str = "roles"
    name_claim: str = "preferred_username"

    @property
    def callback(self) -> str:
        """The redirect URI to register at the provider."""
        return f"{self.url.rstrip('/')}/oidc/callback"

    def person(self, claims: Mapping[str, Any]) -> Person:
        """Returns whom claims describe. Raises PermissionDenied for somebody without a name or a role here."""
        name = claims.get(self.name_claim)
        if not isinstance(name, str) or not name.strip():
            raise PermissionDenied(f"the provider sends no claim {self.name_claim!r}; set oidc_name_claim")
        given = _claim(claims, self.roles_claim)
        values = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        found = [Person(name, self.roles[value]) for value in values if isinstance(value, str) and value in self.roles]
        if not found:
            raise PermissionDenied(f"{name} has no role here: the claim {self.roles_claim!r} names none of oidc_roles")
        return max(found, key=lambda person: ROLES.index(person.role))


class Oidc:
    """The two routes. `http` reaches the provider; a test gives its own."""

    def __init__(self, provider: Provider, key: str, *, secure: bool, session_s: int) -> None:
        self._provider, self._secure, self._session_s = provider, secure, session_s
        self._signer = URLSafeTimedSerializer(key, salt="oidc")
        self._known: dict[str, Any] = {}  # the provider's metadata, once read

    def routes(self) -> list[Route]:
        """Where people begin, and where the provider sends them back."""
        return [Route("/oidc/sign-in", self._begin), Route("/oidc/callback", self._end)]

    async def _begin(self, _: Request) -> Response:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        try:
            metadata = await self._metadata()
        except AeencError as error:
            return _told(error, 503)
        nonce, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
        async with self._client(AsyncOAuth2Client) as client:
            address, state = client.create_authorization_url(
                metadata["authorization_endpoint"], code_verifier=verifier, nonce=nonce
            )
        answer = RedirectResponse(address, 303)
        attempt = self._signer.dumps([state, nonce, verifier])
        options: dict[str, Any] = {"max_age": ATTEMPT_S, "path": "/oidc", "httponly": True, "samesite": "lax"}
        answer.set_cookie(COOKIE, str(attempt), secure=self._secure, **options)
        return answer

    async def _end(self, request: Request) -> Response:
        try:
            person = self._provider.person(await self._claims(request))
        except AeencError as error:
            return _told(error, {"PERMISSION_DENIED": 403, "UNAVAILABLE": 503}.get(error.code, 401))
        sign_in(request, person, lasts_s=self._session_s)
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(COOKIE, path="/oidc")
        return answer

    async def _claims(self, request: Request) -> Mapping[str, Any]:
        """The checked claims of whoever comes back. Raises Unauthenticated."""
        from authlib.integrations.base_client import OAuthError
        from authlib.integrations.httpx_client import AsyncOAuth2Client
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        try:
            state, nonce, verifier = self._signer.loads(request.cookies.get(COOKIE, ""), max_age=ATTEMPT_S)
        except BadData:
            raise Unauthenticated("this attempt to sign in is over or was begun elsewhere; begin again") from None
        query = request.query_params
        if not secrets.compare_digest(query.get("state", "").encode("utf-8", "replace"), state.encode()):
            raise Unauthenticated("the provider's answer belongs to another attempt; begin again")
        if "code" not in query:
            raise Unauthenticated(f"the provider refused: {query.get('error', 'no code')}; begin again")
        metadata = await self._metadata()
        try:
            async with self._client(AsyncOAuth2Client) as client:
                token = await client.fetch_token(metadata["token_endpoint"], code=query["code"], code_verifier=verifier)
                keys = KeySet.import_key_set(await _get(metadata["jwks_uri"]))
            read = jwt.decode(str(token["id_token"]), keys, algorithms=ALGORITHMS)
            wanted = {"iss": self._provider.issuer, "aud": self._provider.client_id, "nonce": nonce}
            rules = {name: {"essential": True, "value": value} for name, value in wanted.items()}
            several = isinstance(audience := read.claims.get("aud"), list) and len(audience) > 1
            rules["azp"] = {"essential": several, "value": self._provider.client_id}  # who asked for the token
            jwt.JWTClaimsRegistry(leeway=60, exp={"essential": True}, **rules).validate(read.claims)  # type: ignore[arg-type]
        except (JoseError, OAuthError, KeyError, ValueError) as error:
            raise Unauthenticated(f"the provider's answer does not hold ({error}); begin again") from None
        except httpx.HTTPError as error:
            raise Unavailable(f"the provider {self._provider.issuer} does not answer ({error})") from None
        return dict(read.claims)

    def _client(self, kind: Any) -> Any:
        return kind(
            self._provider.client_id,
            self._provider.client_secret,
            scope="openid profile email",
            redirect_uri=self._provider.callback,
            code_challenge_method="S256",
            timeout=TIMEOUT_S,
        )

    async def _metadata(self) -> dict[str, Any]:
        """The provider's endpoints. Raises Unavailable, also for a provider that calls itself otherwise."""
        if not self._known:
            issuer = self._provider.issuer
            try:
                found = await _get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            except (httpx.HTTPError, ValueError) as error:
                raise Unavailable(f"the provider {issuer} does not answer ({error})") from None
            if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ENDPOINTS):
                problem = f"its .well-known/openid-configuration does not name {', '.join(ENDPOINTS)}"
                raise Unavailable(f"{issuer} is no OpenID provider: {problem}; correct oidc_issuer")
            if found.get("issuer") != issuer:
                raise Unavailable(f"the provider at {issuer} calls itself {found.get('issuer')!r}; set oidc_issuer so")
            self._known = found
        return self._known


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Returns a claim by its name, else by its path; None where there is none."""
    found: Any = claims
    for part in [name] if name in claims else name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


async def _get(address: str) -> Any:
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
        return (await http.get(address)).raise_for_status().json()


def _told(error: AeencError, status: int) -> Response:
    back = '<p><a href="/oidc/sign-in">Begin again</a></p>'
    return HTMLResponse(f"<!doctype html><title>Not signed in</title><p>{escape(error.message)}</p>{back}", status)


def roles_of(texts: Iterable[str]) -> dict[str, Role]:
    """Reads VALUE=ROLE, such as `aeenc-leads=adjudicator`. Raises ValueError."""
    found: dict[str, Role] = {}
    for text in texts:
        value, _, role = text.rpartition("=")
        if not value or role not in ROLES:
            raise ValueError(f"oidc_role {text!r} is not VALUE=ROLE with one of {', '.join(ROLES)}")
        found[value] = role
    return found
