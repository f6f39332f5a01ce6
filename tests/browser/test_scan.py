"""Every route of the workbench under odd bodies, headers and parameters: never a 500."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from aeenc_workbench import calls
from aeenc_workbench.app import make_app
from aeenc_workbench.sign_in import Links, Person
from browser.conftest import signed_in
from starlette.routing import Route

pytestmark = pytest.mark.browser
ODD = [
    *('""', '" "', '"ü\\u0000"', '"\\ud800"', "null", "NaN", "Infinity", "1e400", "true", "[]", "{}", "[[null]]"),
    *(str(n) for n in (-1, 0, 2**31, 2**53 - 1, 2**63, -(2**63), 2**64)),
    *('["\\u0000"]', '["x"]', '{"x": 1e39}', '{"": null}', '{"x": "explains"}', '"' + 20_000 * "x" + '"'),
]
BODIES = ["", " ", "\0", "null", "[]", "{", '"\\ud800"', 5_000 * "[", "\ufeff{}"]
PARAMETERS = ("hypothesis", "state", "task", "link")
HEADERS = ["", " ", "tök", "\x7f", "-1", str(2**64), 9_000 * "x", 5_000 * "9"]


async def test_no_field_header_or_parameter_makes_a_route_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, type[calls.Body]] = {}
    read = calls.Call.body

    async def noted(call: calls.Call, kind: type[Any]) -> Any:
        kinds[call.request.url.path] = kind
        return await read(call, kind)

    monkeypatch.setattr(calls.Call, "body", noted)
    links, person = Links(tmp_path), Person("ann", "admin")
    away = dict.fromkeys(("sampler", "index", "trainer", "encoder"), "127.0.0.1:1")
    app = make_app(links, gold=[("q", ("p",))], timeout_s=0.2, **away)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        await signed_in(http, links, person.name, person.role)
        asked: list[tuple[str, str, dict[str, Any]]] = []
        for route in (one for one in app.routes if isinstance(one, Route)):
            path = route.path.format(run="%00%ff", form="x", job="%ed%a0%80")
            if path in ("/sign-out", "/api/events"):
                continue
            if "POST" not in (route.methods or ()):
                queries = ("", "%00", "%ff", "%ed%a0%80", 5_000 * "x")
                named = [{"params": "&".join(f"{name}={odd}" for name in PARAMETERS)} for odd in queries]
                asked += [("GET", path, options) for options in named]
                asked += [("GET", path, {"headers": {"last-event-id": odd.encode()}}) for odd in HEADERS]
                continue
            await http.post(path, content="{}")
            asked += [("POST", path, {"content": body.encode()}) for body in BODIES]
            for name in ("x-csrf-token", "content-length", "cookie", "origin"):
                asked += [("POST", path, {"content": b"{}", "headers": {name: odd.encode()}}) for odd in HEADERS]
            fields = kinds[path].model_fields if path in kinds else {}
            whole = {name: _plain(name, one, links.leases.seal("l", person)) for name, one in fields.items()}
            for name in fields:
                for odd in ODD:
                    body = json.dumps({**whole, name: "ODD"}).replace('"ODD"', odd)
                    asked.append(("POST", path, {"content": body.encode()}))
        assert len(kinds) > 12

        at_once = asyncio.Semaphore(200)

        async def answer(method: str, path: str, options: dict[str, Any]) -> tuple[int, str]:
            async with at_once:
                answered = await http.request(method, path, **options)
                return answered.status_code, answered.text

        answers = await asyncio.gather(*(answer(*one) for one in asked))
    failed = [(one, told) for one, told in zip(asked, answers, strict=True) if told[0] == 500 or "Traceback" in told[1]]
    assert not failed, f"{len(failed)} of {len(asked)}: {[(a[1], str(a[2])[:90], t[1][:160]) for a, t in failed[:12]]}"


def _plain(name: str, field: Any, lease: str) -> Any:
    if not field.is_required():
        return field.get_default(call_default_factory=True)
    known: dict[Any, Any] = {str: lease if name == "lease" else "x", int: 1, list[str]: ["x"]}
    return known.get(field.annotation, {"x": "explains"})
