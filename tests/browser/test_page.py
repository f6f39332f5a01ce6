"""The built page is that of its sources, small and quick, and neither sends nor holds what nobody sees; its command."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from aeenc_workbench.__main__ import DRAIN_S, main
from aeenc_workbench.sign_in import Links, Person
from browser.conftest import shown, started, submitted
from browser.test_annotate import answered, not_explainable
from browser.test_sight import held
from browser.test_trees import children

from services.launcher.fleet import Fleet, Options
from services.launcher.processes import free_port
from support.models.tiny_base_models import write_tiny_base
from support.waiting import eventually

pytestmark = pytest.mark.browser
WORKBENCH = Path(__file__).parents[2] / "clients" / "workbench"
BUILT = WORKBENCH / "aeenc_workbench" / "page"
FIRST_LOAD_BYTES = 60_000
INTERACTIVE_S = 1.0
RUN = """
import { folded, sentVerdicts } from %s;
const { candidates, keys, draft } = JSON.parse(process.argv[1]);
const folds = folded(candidates, keys);
console.log(JSON.stringify({ folds: folds.map(({ head, others }) => [head, ...others].map((one) => one.premise_id)),
  sent: sentVerdicts(draft, folds) }));
"""
KEYS = {"a": "heat", "b": "above 5", "c": "above 5", "d": "below 5", "e": "heat", "f": ""}


def test_the_built_page_is_fresh(tmp_path: Path) -> None:
    copy = tmp_path / "workbench"
    shutil.copytree(WORKBENCH / "page", copy / "page", symlinks=True)
    subprocess.run(["npm", "run", "build"], cwd=copy / "page", check=True, capture_output=True)
    built = copy / "aeenc_workbench" / "page"
    names = sorted(path.relative_to(built) for path in built.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(BUILT) for path in BUILT.rglob("*") if path.is_file())
    stale = [str(name) for name in names if (built / name).read_bytes() != (BUILT / name).read_bytes()]
    assert not stale, f"run `npm run build` in clients/workbench/page: {stale}"


def test_the_page_is_small() -> None:
    packed = sum(len(gzip.compress(path.read_bytes())) for path in BUILT.rglob("*") if path.is_file())
    assert packed <= FIRST_LOAD_BYTES


def test_the_distribution_is_typed() -> None:
    checked = subprocess.run([sys.executable, "-m", "mypy"], cwd=WORKBENCH, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_command_prints_links_and_refuses_to_be_open_to_all(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from aeenc.cli.main import main; main()", "workbench"]
    told = subprocess.run(
        [*command, "--link", "--annotator", "ann", "--adjudicator", "lead", "--state-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "ann (annotator)  http://127.0.0.1:8700/sign-in?link=" in told
    assert "lead (adjudicator)" in told
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    refused = subprocess.run([*command, "--host", "0.0.0.0"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "is not loopback" in refused.stderr


def test_a_link_beside_a_fleet_is_for_the_workbench_of_the_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AEENC_HOME", str(tmp_path))
    (tmp_path / "state").mkdir()

    def printed(*words: str) -> str:
        main(["--link", "--annotator", "cem", *words])
        return capsys.readouterr().out

    with socket.create_server(("127.0.0.1", 0)) as workbench:
        port = workbench.getsockname()[1]
        (tmp_path / "fleet.json").write_text(json.dumps({"targets": {"workbench": f"127.0.0.1:{port}"}}))
        told = printed()
        assert f"http://127.0.0.1:{port}/sign-in" in told
        assert Links(tmp_path / "state" / "workbench").use(told.strip().rpartition("link=")[2]) == Person("cem")
        assert not (tmp_path / "workbench").exists()
        assert "http://127.0.0.1:9/sign-in" in printed("--port", "9")
    assert ":8700/sign-in" in printed(), "a fleet that has ended has no workbench"
    for damaged in (
        '{"targets": {"workbench": "127.0.0.1:99999"}}',
        '{"targets": {"workbench": 7}}',
        "[" * 100_000,
        "[]",
        "{",
        "",
    ):
        (tmp_path / "fleet.json").write_text(damaged)
        assert ":8700/sign-in" in printed()


def test_the_workbench_starts_and_ends_with_a_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_base(tmp_path / "base")
    monkeypatch.setenv("AEENC_TRAINER_BASE_MODEL", str(tmp_path / "base"))
    fleet, options = Fleet(tmp_path / "home"), Options(base_port=0, people={"team": 1}, workbench=True)
    fleet.up(options)
    try:
        running = fleet.running()
        with httpx.Client(follow_redirects=True) as http:
            link = fleet.sign_in_link()
            assert "AE-Enc" in http.post(link).text
            origin = link.partition("/sign-in")[0]
            assert http.get(f"{origin}/api/me").json()["role"] == "admin"
            assert [one["name"] for one in http.get(f"{origin}/api/queues").json()] == ["team"]
        assert "link=" not in (tmp_path / "home" / "logs" / "workbench.log").read_text()
        fleet.up(replace(options, workbench=False))
        assert fleet.running().keys() == running.keys() - {"workbench"}
        assert not running["workbench"].alive
    finally:
        fleet.down()


async def test_an_open_page_does_not_hold_up_the_end(tmp_path: Path) -> None:
    port = free_port(set())
    words = ["--port", str(port), "--state-dir", str(tmp_path), "--sampler", "127.0.0.1:1", "--index", "127.0.0.1:1"]
    async with started(words) as process, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        await http.post(f"/sign-in?link={Links(tmp_path).make(Person('ann'))}")
        async with http.stream("GET", "/api/events") as events:
            assert events.status_code == 200
            process.terminate()
            await asyncio.wait_for(process.wait(), DRAIN_S - 1)


async def leave(page: Any) -> None:
    """Goes to another view."""
    await page.get_by_role("link", name="Playground").click()
    await page.get_by_role("heading", name="Playground").wait_for()


async def nobody_holds(bench: Any, run_id: str, text: str = "") -> None:
    """Waits until nobody holds a node of the first tree, or the node of this text."""

    async def held_by() -> list[str]:
        nodes = (await bench.people.get_tree(run_id, "tree-0")).nodes
        return [name for node in nodes if text in ("", node.text) for name in node.holders]

    await eventually(held_by, is_so=lambda names: not names)


async def test_the_page_is_soon_ready(bench: Any) -> None:
    async with bench() as at:
        await at.run(["hypothesis 0"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        took = []
        for _ in range(5):
            begun = time.monotonic()
            await page.reload()
            await page.get_by_role("button", name="Submit").wait_for()
            took.append(time.monotonic() - begun)
            await asyncio.sleep(0)
        assert sorted(took)[2] <= INTERACTIVE_S


async def test_an_address_that_changes_while_the_page_starts_is_the_view_that_opens(bench: Any) -> None:
    async with bench() as at:
        page = await at.window("ann")
        held = asyncio.Event()

        async def late(route: Any) -> None:
            await page.evaluate("history.replaceState(null, '', '#playground')")  # before anybody listens for it
            held.set()
            await route.continue_()

        await page.get_by_role("button", name="Sign out").wait_for()
        await page.route("**/api/me", late)
        await page.reload()
        await held.wait()
        await page.get_by_role("heading", name="Playground").wait_for()


async def test_who_leaves_while_an_answer_is_sent_holds_no_task_that_they_do_not_see(bench: Any) -> None:
    async with bench() as at:
        run_id = await at.run(["hypothesis 0", "hypothesis 1"], max_depth=0)
        page = await at.window("ann", shows="hypothesis 0")
        await not_explainable(page)
        release = await held(page, "**/api/answer")
        await page.keyboard.press("Control+Enter")
        await page.get_by_role("button", name="Sending").wait_for()
        await leave(page)
        async with page.expect_response("**/api/answer"):
            release()
        await page.wait_for_timeout(1000)
        nodes = [(await at.people.get_tree(run_id, f"tree-{n}")).nodes[0] for n in (0, 1)]
        assert [(one.answered, one.holders) for one in nodes] == [(1, ()), (0, ())]
        await page.get_by_role("link", name="Annotate").click()
        await shown(page, "hypothesis 1")
        await page.get_by_role("button", name="Undo").wait_for()


@pytest.mark.parametrize("asks", ["undo", "node", "ended"])
async def test_a_task_that_comes_after_its_person_has_left_the_view_goes_back(bench: Any, asks: str) -> None:
    async with bench(first_lease_s=1.5 if asks == "ended" else 30.0) as at:
        run_id = await at.run(["hypothesis 0"], max_depth=1 if asks == "node" else 0)
        page = await at.window("ann")
        asked, seen = "hypothesis 0", "hypothesis 0"

        def of_a_task(request: Any) -> bool:
            return request.url.endswith("/api/lease") and "task" in request.post_data_json

        begin = page.get_by_role("button", name="Undo")
        if asks == "node":
            await answered(page, "hypothesis 0", "1", "2")
            seen, asked = await children(at, run_id, 2)
            begin = page.get_by_role("tree").get_by_role("button", name=asked)
        await shown(page, seen)
        if asks == "undo":
            await not_explainable(page)
            await submitted(page)
            await page.get_by_text("Nothing waits for you").wait_for()
        if asks == "ended":
            await leave(page)
            await nobody_holds(at, run_id)
            begin = page.get_by_role("link", name="Annotate")
        release = await held(page, "**/api/lease", of=of_a_task)
        async with page.expect_request(of_a_task):
            await begin.click()
        await leave(page)
        async with page.expect_response(lambda one: of_a_task(one.request)):
            release()
        await nobody_holds(at, run_id, asked)
        async with page.expect_request(of_a_task if asks == "ended" else "**/api/**"):
            await page.get_by_role("link", name="Annotate").click()
        await shown(page, seen)


async def test_who_opens_another_node_while_the_held_task_is_asked_for_is_told_of_no_loss(bench: Any) -> None:
    async with bench(undo_s=0.0, first_lease_s=1.5, min_lease_s=1.5) as at:
        run_id = await at.run(["hypothesis 0"])
        [lease] = await at.people.lease("ann", run_id=run_id)
        await at.people.submit(lease, [one.premise.id for one in lease.task.candidates[:2]])
        first, second = await children(at, run_id, 2)
        page = await at.window("ann", shows=first)
        await page.keyboard.press("2")
        await leave(page)

        def of_the_first(request: Any) -> bool:
            return request.url.endswith("/api/lease") and request.post_data_json.get("task") == task_id

        await nobody_holds(at, run_id)
        task_id = (await at.people.get_tree(run_id, "tree-0")).nodes[1].task_id
        release = await held(page, "**/api/lease", of=of_the_first)
        async with page.expect_request(of_the_first):
            await page.get_by_role("link", name="Annotate").click()
        await page.keyboard.press("o")
        await page.get_by_role("button", name="Reopen: hypothesis 0").click()
        await page.get_by_role("tree").get_by_role("button", name=second).click()
        await shown(page, second)
        async with page.expect_response(lambda one: "came late" in (one.request.post_data or "")):
            release()
        await page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        assert not await page.get_by_text("Your time for").count(), "nobody else has it"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = tmp_path_factory.mktemp("draft") / "draft.mjs"
    command = [
        WORKBENCH / "page/node_modules/.bin/esbuild",
        "src/draft.ts",
        "--bundle",
        "--format=esm",
        f"--outfile={built}",
    ]
    subprocess.run(command, cwd=WORKBENCH / "page", check=True, capture_output=True)
    return RUN % json.dumps(built.as_uri())


@pytest.mark.parametrize(
    ("verdicts", "read", "seen_upto", "sent"),
    [
        ({}, "", 6, "a:unseen b:unseen c:unseen d:unseen e:unseen f:unseen"),
        ({}, "ab", 6, "a:refuses b:refuses c:abstains d:unseen e:abstains f:unseen"),
        ({}, "abdf", 2, "a:refuses b:refuses c:abstains d:unseen e:abstains f:unseen"),
        ({"a": "explains"}, "", 6, "a:explains b:unseen c:unseen d:unseen e:abstains f:unseen"),
        ({"b": "refuses", "d": "refuses"}, "d", 2, "a:unseen b:unseen c:unseen d:refuses e:unseen f:unseen"),
        ({"b": "refuses", "c": "refuses"}, "b", 4, "a:unseen b:refuses c:abstains d:unseen e:unseen f:unseen"),
        ({"f": "abstains"}, "f", 6, "a:unseen b:unseen c:unseen d:unseen e:unseen f:abstains"),
    ],
)
def test_only_what_was_read_is_refused_and_nothing_that_is_folded(
    script: str, verdicts: dict[str, str], read: str, seen_upto: int, sent: str
) -> None:
    candidates = [
        {"premise_id": name, "text": name, "rank": rank, "score": 0} for rank, name in enumerate(KEYS, start=1)
    ]
    draft = {"verdicts": verdicts, "read": list(read), "seenUpto": seen_upto}
    asked = json.dumps({"candidates": candidates, "keys": [*KEYS.values()], "draft": draft})
    command = ["node", "--input-type=module", "--eval", script, asked]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert told["folds"] == [["a", "e"], ["b", "c"], ["d"], ["f"]]
    assert told["sent"] == dict(one.split(":") for one in sent.split())
