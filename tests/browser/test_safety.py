"""What the workbench keeps out: forged requests, stolen sessions, scripts in texts; and that everybody can use it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import ssl
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from aeenc_workbench.__main__ import main
from aeenc_workbench.app import make_app
from aeenc_workbench.events import Events
from aeenc_workbench.settings import WorkbenchSettings
from aeenc_workbench.sign_in import Links, Person, Sessions
from browser.conftest import press_keys, signed_in, started, submitted

from aeenc import values
from services.launcher.processes import free_port
from services.sampler.__main__ import build
from support import waiting
from support.certificates import certify, needs_openssl
from support.worlds.sampler_world import QUEUE, small_world

pytestmark = pytest.mark.browser
PAYLOAD = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>\'"`${window.pwned=1}`'
AXE = Path(__file__).parents[2] / "clients" / "workbench" / "page" / "node_modules" / "axe-core" / "axe.min.js"
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="axe-core is missing: npm install in clients/workbench/page")


async def test_scripts_in_hypotheses_premises_names_and_notes_do_not_run(bench: Any) -> None:
    async with bench(overlap=2, policy="adjudicate") as at:
        at.world.index.suffix = f" {PAYLOAD}"
        await at.run([f"hypothesis {PAYLOAD}"], max_depth=0)
        name = f"ann {PAYLOAD}"
        page = await at.window(name, shows="onerror")
        await page.keyboard.press("n")
        await page.keyboard.type(PAYLOAD)
        await page.locator(".gutter.seen").nth(3).wait_for()  # so that there is something to disagree about
        await submitted(page, "Escape", "1")
        other = await at.window("bob", shows="onerror")
        await other.locator(".gutter.seen").nth(3).wait_for()
        await submitted(other, "2")
        lead = await at.window("lead", "adjudicator")
        await lead.get_by_role("link", name="Lead").click()
        await lead.get_by_role("button", name="Decide").wait_for()
        for window in (page, other, lead):
            assert await window.evaluate("window.pwned") is None
            assert await window.locator("main img, main script").count() == 0


async def test_a_session_cookie_is_strict_and_a_link_signs_in_once(bench: Any) -> None:
    async with bench() as at:
        link = f"{at.url}/sign-in?link={at.links.make(Person('ann'))}"
        async with httpx.AsyncClient() as http:
            assert [(await http.request(way, link)).status_code for way in ("HEAD", "GET")] == [200, 200], "a preview"
            entered = await http.post(link)
            assert entered.status_code == 303
            cookie = entered.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert (await http.post(link)).headers["location"] == "/", "who is signed in already is led to the page"
            async with httpx.AsyncClient() as another:
                for used in (link, f"{at.url}/sign-in?link=made-up"):
                    refused = await another.post(used)
                    assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
                    assert "ask whoever has sent it for a new one" in refused.text
                    assert "workbench.css" in refused.text
            me = (await http.get(f"{at.url}/api/me")).json()
            assert (me["name"], me["role"]) == ("ann", "annotator")
            forged = await http.post(f"{at.url}/api/lease", json={})
            assert (forged.status_code, forged.json()["reason"]) == (403, "CSRF")
            allowed = await http.post(f"{at.url}/api/lease", json={}, headers={"x-csrf-token": me["csrf"]})
            assert (allowed.status_code, allowed.json()) == (200, None)
            denied = await http.get(f"{at.url}/api/runs/x/agreement")
            assert denied.status_code == 403
            policy = (await http.get(at.url)).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            large = await http.post(f"{at.url}/api/lease", content=b"x" * 2_000_000)
            assert large.status_code == 413
            wrong = await http.post(
                f"{at.url}/api/answer", json={"lease": "x", "who": "bob"}, headers={"x-csrf-token": me["csrf"]}
            )
            assert wrong.status_code == 400
            assert "who" in wrong.json()["detail"]
            left = await http.post(f"{at.url}/sign-out", headers={"x-csrf-token": me["csrf"]})
            assert left.status_code == 204
        async with httpx.AsyncClient() as stranger:
            assert (await stranger.get(f"{at.url}/api/me")).status_code == 401
            assert (await stranger.get(f"{at.url}/api/events")).status_code == 401


async def test_a_person_signs_out_and_a_session_that_ends_offers_the_way_in(bench: Any) -> None:
    async with bench() as at:
        await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        ended = {"status": 401, "body": json.dumps({"detail": "nobody is signed in", "reason": "OIDC"})}
        await page.route("**/api/answer", lambda route: route.fulfill(**ended), times=1)
        await press_keys(page, "1", "Control+Enter")
        await page.get_by_role("link", name="Sign in").wait_for()
        await page.reload()
        copied = {one["name"]: one["value"] for one in await page.context.cookies()}
        async with httpx.AsyncClient(base_url=at.url, cookies=copied) as http:
            assert (await http.get("/api/me")).status_code == 200
            await page.get_by_role("button", name="Sign out").click()
            await page.get_by_role("status").get_by_text("You are signed out. What you have ticked is kept").wait_for()
            assert (await http.get("/api/me")).status_code == 401


async def test_a_stream_that_its_browser_leaves_ends_what_it_follows() -> None:
    ended = asyncio.Event()

    async def following() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            await asyncio.Event().wait()
        finally:
            ended.set()

    relayed = Events(cast("Any", None)).relay(following(), lambda: True)
    assert await anext(relayed) == b"one"
    waiting = asyncio.ensure_future(anext(relayed))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


@pytest.mark.parametrize("turns", range(4))
async def test_a_stream_that_is_cancelled_as_an_event_comes_ends(turns: int) -> None:
    """Python 3.11's `asyncio.wait_for` would swallow the cancellation: the stream would go on for nobody."""
    event = SimpleNamespace(seq=1, kind=values.TaskEventKind.ANSWERED, run_id="r", task_id="t")
    outcomes: list[bool] = []

    async def watch(**_: Any) -> AsyncGenerator[Any, None]:
        yield event
        for _turn in range(turns):
            await asyncio.sleep(0)
        outcomes.append(asked.cancel())
        await asyncio.Event().wait()

    events = Events(cast("Any", SimpleNamespace(people=SimpleNamespace(watch=watch))))
    stream = events.stream(lambda: True)
    assert await anext(stream) == b"retry: 1000\n\n"
    asked = asyncio.ensure_future(anext(stream))
    events.start()
    await waiting.until(lambda: bool(outcomes))
    [done] = await asyncio.gather(asked, return_exceptions=True)
    assert isinstance(done, asyncio.CancelledError) is outcomes[0]
    await events.stop()


async def test_whoever_is_cancelled_while_the_streams_end_hears_of_it() -> None:
    async def watch(**_: Any) -> AsyncGenerator[Any, None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            stopping.cancel()

    events = Events(cast("Any", SimpleNamespace(people=SimpleNamespace(watch=watch))))
    events.start()
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(events.stop())
    with pytest.raises(asyncio.CancelledError):
        await stopping


def test_a_full_disk_leaves_sessions_and_members_as_they_were(tmp_path: Path) -> None:
    sessions, now = Sessions(tmp_path), time.time()
    sessions.end_all()
    sessions.members.let_in(Person("ann"))
    session = {"id": "i", "name": "ann", "since": now + 60, "until": now + 120}
    before, files = resource.getrlimit(resource.RLIMIT_FSIZE), sorted(tmp_path.rglob("*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        for change in (sessions.end_all, lambda: sessions.members.revoke("ann")):
            with pytest.raises(OSError, match=str(tmp_path)):
                change()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sessions.lives(session)
    assert sorted(tmp_path.rglob("*")) == files


@asynccontextmanager
async def alone(tmp_path: Path) -> AsyncIterator[tuple[Any, httpx.AsyncClient]]:
    """A workbench whose services are away, and a browser in which somebody is signed in."""
    links = Links(tmp_path)
    app = make_app(links, sampler="127.0.0.1:1", index="127.0.0.1:1", trainer="127.0.0.1:1")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    at = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
    async with app.router.lifespan_context(app), at as http:
        await signed_in(http, links, "ann")
        yield app, http


async def test_whoever_signs_out_reads_no_more_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aeenc_workbench.events.BEAT_S", 0.01)
    async with alone(tmp_path) as (_, http):
        stream = asyncio.create_task(http.get("/api/events"))
        await asyncio.sleep(0.1)
        assert not stream.done()
        assert (await http.post("/sign-out")).status_code == 204
        ended = await asyncio.wait_for(stream, 5)
        assert (ended.status_code, ": still here" in ended.text) == (200, True)


async def test_streams_that_browsers_abandon_leave_nothing_behind(tmp_path: Path) -> None:
    async with alone(tmp_path) as (app, http):
        streams = [asyncio.create_task(http.get("/api/events")) for _ in range(5)]
        await waiting.until(lambda: len(app.state.events._browsers) == 5)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await waiting.until(lambda: not app.state.events._browsers)


async def test_a_mark_that_another_process_has_just_removed_keeps_nobody_signed_in(tmp_path: Path) -> None:
    async with alone(tmp_path) as (_, http):
        (tmp_path / "ended-sessions").mkdir()
        (tmp_path / "ended-sessions" / "old").symlink_to("removed")  # is listed, and is not there
        cookies = dict(http.cookies)
        assert (await http.post("/sign-out")).status_code == 204
        http.cookies.update(cookies)
        assert (await http.get("/api/me")).status_code == 401


async def test_of_several_who_note_one_name_at_once_one_is_the_first_and_none_fails(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"old-{number}").touch()
        os.utime(tmp_path / f"old-{number}", (0, 0))  # forgotten by now: all remove it at once
    code = (
        "import sys, pathlib; from aeenc_workbench.sign_in import Marks; marks = Marks(pathlib.Path(sys.argv[1]), 60.0)"
    )
    code += "\nsys.stdin.readline()\nprint([marks.set(f'link-{number}') for number in range(50)].count(True))"
    options: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    options["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    others = [await asyncio.create_subprocess_exec(sys.executable, "-c", code, tmp_path, **options) for _ in range(4)]
    told = await asyncio.gather(*(process.communicate(b"\n") for process in others))
    assert [process.returncode for process in others] == [0] * 4
    assert sum(int(out) for out, _ in told) == 50
    assert set(os.listdir(tmp_path)) == {f"link-{number}" for number in range(50)}  # noqa: PTH208


async def test_a_bug_is_told_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with alone(tmp_path) as (_, http):
        monkeypatch.setattr(Sessions, "lives", lambda *_: 1 / 0)
        answer = await http.get("/api/me")
        assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
        assert "its log says why (ZeroDivisionError)" in answer.json()["detail"]
        assert "division by" not in answer.text


async def test_one_command_signs_everybody_out_and_other_sites_sign_nobody_in(tmp_path: Path) -> None:
    async with alone(tmp_path) as (_, http):
        main(["--sign-out-everybody", "--state-dir", str(tmp_path)])
        assert (await http.get("/api/me")).status_code == 401
        link = f"/sign-in?link={Links(tmp_path).make(Person('ann'))}"
        assert (await http.post(link, headers={"sec-fetch-site": "cross-site"})).status_code == 403
        assert (await http.get("/api/me")).status_code == 401
        assert (await http.post(link)).status_code == 303
        assert (await http.get("/api/me")).status_code == 200


def test_its_token_travels_to_another_host_without_tls_only_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--port", "0", "--state-dir", str(tmp_path), "--sampler", "192.0.2.1:1", "--token", "t"]
    with pytest.raises(SystemExit, match=r"plain_token: is off, so no token travels to 192\.0\.2\.1:1"):
        main(words)

    def serve(*_: object, **__: object) -> None:
        raise OSError("while serving")

    monkeypatch.setattr(WorkbenchSettings, "serve", serve)
    with pytest.raises(OSError, match="while serving"):  # which no option is to blame for
        main([*words, "--plain-token"])
    assert "its token may travel to other hosts without TLS (plain_token)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cert": __file__}, "cert and key belong together"),
        ({"gold": "nowhere"}, "gold: nowhere: the directory does not exist"),
        ({"state-dir": __file__}, r"File exists: .*test_safety\.py"),
        ({"oidc-client-secret-file": "nowhere"}, "No such file or directory: 'nowhere'"),
    ],
)
def test_files_that_cannot_be_used_stop_its_start_in_one_line(
    tmp_path: Path, options: dict[str, str], problem: str
) -> None:
    given = {"port": "0", "state-dir": str(tmp_path), "sampler": "192.0.2.1:1"}
    given |= {
        "oidc-issuer": "https://a",
        "oidc-client-id": "a",
        "oidc-client-secret-file": __file__,
        "url": "https://b",
    }
    with pytest.raises(SystemExit, match=f"^aeenc-workbench: .*{problem}"):
        main([word for name, value in (given | options).items() for word in (f"--{name}", value)])


@needs_openssl
async def test_it_shows_the_services_one_certificate_of_its_own_and_browsers_another(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    (cert, key), (own_cert, own_key) = certify(tmp_path, "services"), certify(tmp_path, "workbench")
    (page_cert, page_key), at = certify(tmp_path, "page"), free_port(set())
    tls = {"tls_cert": cert, "tls_key": key, "tls_client_ca": own_cert}
    async with (
        small_world(redis_url, namespace) as world,
        build(world.configure(queues={"team": QUEUE}, host="localhost", **tls)) as sampler,
    ):
        for shown, answer in ((["--cert", own_cert, "--key", own_key], 200), ([], 503)):
            words = ["--host", "localhost", "--port", at, "--state-dir", tmp_path / "state", "--ca", cert, *shown]
            words += ["--tls-cert", page_cert, "--tls-key", page_key, "--sampler", f"localhost:{sampler.port}"]
            async with started([str(word) for word in words]):
                url, trusted = f"https://localhost:{at}", ssl.create_default_context(cafile=page_cert)
                async with httpx.AsyncClient(base_url=url, verify=trusted, timeout=30) as http:
                    link = Links(tmp_path / "state").make(Person("ann"))
                    assert (await http.post(f"/sign-in?link={link}")).status_code == 303
                    assert (await http.get("/api/queues")).status_code == answer
                other = ssl.create_default_context(cafile=cert)
                async with httpx.AsyncClient(base_url=url, verify=other) as http:
                    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                        await http.get("/")


async def test_nobody_answers_under_the_lease_of_somebody_else(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        async with httpx.AsyncClient(base_url=at.url) as ann, httpx.AsyncClient(base_url=at.url) as bob:
            for name, http in (("ann", ann), ("bob", bob)):
                await signed_in(http, at.links, name)
            lease = (await ann.post("/api/lease", json={})).json()["lease_id"]
            [task] = [one async for one in at.people.list_tasks(run_id)]
            calls = {"answer": {"verdicts": {task.task.candidates[0].premise.id: "explains"}, "seq": 1}}
            calls |= {"renew": {}, "release": {}}
            for call, body in calls.items():
                for stolen in (lease, "made-up"):
                    refused = await bob.post(f"/api/{call}", json={**body, "lease": stolen})
                    assert (refused.status_code, refused.json()["reason"]) == (403, "LEASE"), call
            for call in ("renew", "answer"):
                assert (await ann.post(f"/api/{call}", json={**calls[call], "lease": lease})).status_code == 200
        [task] = [one async for one in at.people.list_tasks(run_id)]
        assert [one.annotator for one in task.answers] == ["ann"]


async def test_the_events_do_not_tell_who_acts_on_which_task(bench: Any) -> None:
    async with bench(overlap=2) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        async with httpx.AsyncClient(base_url=at.url) as http:
            await signed_in(http, at.links, "ann")
            async with http.stream("GET", "/api/events") as stream:
                lines = stream.aiter_lines()
                assert await anext(lines) == "retry: 1000"
                [lease] = await at.people.lease("bob")
                told = [line async for line in until(lines, '"leased"')]
        assert json.loads(told[-1].removeprefix("data: ")) == {
            "event": "leased",
            "run": run_id,
            "task": lease.task.task_id,
        }
        assert not [line for line in told if "bob" in line]


async def until(lines: AsyncIterator[str], text: str) -> AsyncIterator[str]:
    """Yields lines up to the one that holds a text."""
    async for line in lines:
        yield line
        if text in line:
            return


async def test_the_next_person_at_a_browser_sees_and_sends_nothing_of_the_last(bench: Any) -> None:
    async with bench(overlap=2) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann")
        second = page.get_by_role("button", name="Accept candidate 2")
        await second.wait_for()
        await page.keyboard.press("2")
        for name, ticked in (("bob", "false"), ("ann", "true")):
            await page.goto(f"{at.url}/sign-in?link={at.links.make(Person(name))}")
            await page.get_by_role("button", name="Sign in").click()
            await second.wait_for()
            assert await second.get_attribute("aria-pressed") == ticked
            if name == "bob":
                await page.keyboard.press("1")
            await submitted(page)
        [task] = [one async for one in at.people.list_tasks(run_id)]
        accepted = {
            one.annotator: [n for n, v in enumerate(one.verdicts, 1) if v.judgement.name == "EXPLAINS"]
            for one in task.answers
        }
        assert accepted == {"bob": [1], "ann": [2]}


async def findings(page: Any) -> list[str]:
    """Axe's findings, of whatever weight."""
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    found = json.loads(await page.evaluate("axe.run().then((found) => JSON.stringify(found.violations))"))
    return [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in found]


async def test_a_lease_that_is_over_is_said_and_the_answer_still_counts(bench: Any) -> None:
    async with bench(first_lease_s=1.0, min_lease_s=1.0) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann")
        await page.get_by_text("the lease is over; submit anyway").wait_for()
        await submitted(page, "1")
        [task] = [one async for one in at.people.list_tasks(run_id)]
        assert [one.late for one in task.answers] == [True]


async def test_a_slow_network_and_a_proxy_without_workbench_double_no_answer(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")

        async def late(route: Any) -> None:
            await asyncio.sleep(1.5)
            await route.continue_()

        await page.route("**/api/answer", late)
        await page.route("**/api/answer", lambda route: route.fulfill(status=502), times=1)
        await page.keyboard.press("1")
        for _ in range(4):
            await page.keyboard.press("Control+Enter")
        await page.get_by_text("Submitted").wait_for()
        [task] = [one async for one in at.people.list_tasks(run_id)]
        assert len(task.answers) == 1
