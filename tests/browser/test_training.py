"""An admin trains on a run's pairs from the page, follows the job, measures it, publishes it and takes it back."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from aeenc_workbench.sign_in import Links
from browser.conftest import open_window, signed_in, started
from browser.test_safety import findings
from browser.test_screens import picture

from aeenc.registry import RegistryClient
from services.launcher.processes import free_port
from services.store.registry import Registry
from services.store.registry_rows import CheckpointRow
from services.trainer import convert
from support.models.tiny_checkpoints import (
    TINY_SPACE,
    TinyCheckpoint,
    register,
    write_tiny_checkpoint,
    write_tiny_cross_encoder_checkpoint,
)
from support.small_trees import record
from support.worlds.trainer_world import FACTS, QUERIES, TrainerWorld

pytestmark = pytest.mark.browser
JOB_MS = 120_000  # a process that loads torch


@asynccontextmanager
async def workbench(world: TrainerWorld, folder: Path) -> AsyncIterator[tuple[str, Links]]:
    """A workbench before the trainer, with gold queries that its corpus answers."""
    task_1 = folder / "gold" / "dataset" / "task_1"
    task_1.mkdir(parents=True)
    trees = [record(f"t{n}", QUERIES[n], f"sent1: {FACTS[n]}", "sent1 -> hypothesis; ") for n in range(8)]
    (task_1 / "dev.jsonl").write_text("".join(json.dumps(one) + "\n" for one in trees))
    at = free_port(set())
    words = ["--port", str(at), "--state-dir", str(folder / "workbench"), "--gold", str(folder / "gold")]
    words += ["--trainer", world.trainer.channel.target, "--sampler", world.sampler.channel.target]
    async with started(words):
        yield f"http://127.0.0.1:{at}", Links(folder / "workbench")


async def second_stable(rows: Registry, write: Callable[[int], TinyCheckpoint]) -> list[str]:
    """Gives another space a label `stable` that was moved once; returns its two versions."""
    made = [write(seed) for seed in (5, 6)]
    for one in made:
        await register(rows, one, label="stable")
    return [one.version for one in made]


async def test_an_admin_trains_publishes_and_rolls_back_by_keyboard(
    world: TrainerWorld, tmp_path: Path, browser: Any, registry: Registry
) -> None:
    older, newer = await second_stable(registry, cross_encoders(world))  # listed before the space of the jobs

    async def stable() -> dict[str, list[str]]:
        labels = RegistryClient(world.trainer.channel).list_labels()
        return {one.space_id: list(one.versions) async for one in labels if one.name == "stable"}

    pairs, own = "cross-encoder", world.space.space_id
    async with workbench(world, tmp_path) as (url, links):
        page = await open_window(browser, url, links, "lead", "admin")
        await page.route("**/api/jobs/*/events", lambda route: route.fulfill(status=503), times=1)  # no trainer
        await press(page, page.get_by_role("link", name="Training"))
        await page.get_by_title(world.run_id).filter(has_text="imported, ").wait_for()
        counted = (await world.sampler.get_run(world.run_id)).progress
        await page.get_by_text(f"{counted.positives} accepted, {counted.negatives} refused").first.wait_for()
        await page.get_by_role("checkbox").first.focus()
        await page.keyboard.press("Space")
        await page.get_by_label("Epochs").fill("2")
        await press(page, page.get_by_role("button", name="Train", exact=True))
        job = page.get_by_role("region", name="Job")
        await job.get_by_text("succeeded").wait_for(timeout=JOB_MS)
        drawn = await job.get_by_role("img").get_attribute("aria-label")
        [made] = [one async for one in world.trainer.list_jobs()]
        assert (made.config.run_ids, made.config.epochs, made.config.split) == ((world.run_id,), 2, "train")
        assert made.config.note == "started by lead in the workbench"
        assert f"at step {made.progress.steps_done} of {made.progress.steps}" in drawn
        assert f"{made.progress.validation_map:.3f} by epoch" in drawn
        await press(page, job.get_by_role("button", name="Measure on dev"))
        rows = job.get_by_role("row")
        await rows.nth(2).wait_for(timeout=JOB_MS)
        first = [rows.nth(n).get_by_role("cell").first for n in (1, 2)]
        assert [await one.get_attribute("title") for one in first] == [world.space.version, made.version]
        assert await first[0].inner_text() == "without it: pre-trained"
        assert (await first[1].inner_text()).startswith("this job: trained ")
        assert f"{made.progress.best_validation_map:.3f}" in await rows.nth(2).inner_text()
        assert not await findings(page)
        await picture(page, "training")
        asked: list[str] = []

        async def say(dialog: Any) -> None:
            asked.append(dialog.message)
            await (dialog.accept() if len(asked) > 1 else dialog.dismiss())

        page.on("dialog", say)
        await press(page, job.get_by_role("button", name="Publish as stable"))
        assert await stable() == {pairs: [newer], own: [world.space.version]}
        await press(page, job.get_by_role("button", name="Publish as stable"))
        assert all(made.version in text for text in asked)
        told = page.get_by_role("status")
        await told.filter(has_text=re.compile("stable is now: trained .*, and every encoder serves it")).wait_for()
        assert await stable() == {pairs: [newer], own: [made.version]}
        labels = page.get_by_role("region", name="Labels").get_by_role("row").filter(has_text="stable")
        names = [
            [await cell.get_attribute("title") for cell in await row.get_by_role("cell").all()]
            for row in await labels.all()
        ]
        assert [row[1:4] for row in names] == [[pairs, newer, older], [own, made.version, world.space.version]]
        assert await labels.first.get_by_role("cell").filter(has_text=re.compile("^trained ")).count() == 2
        assert not await labels.get_by_text(re.compile("[qx][0-9a-f]{16}")).count(), "an id on the face of the page"
        await press(page, page.get_by_role("button", name="Roll back to pre-trained"))
        await page.get_by_text("stable is now: pre-trained, and every encoder serves it").wait_for()
        assert await stable() == {pairs: [newer], own: [world.space.version]}
        await press(page, labels.filter(has_text="cross-encoder").get_by_role("button", name="Roll back"))
        await told.filter(has_text="stable is now: trained ").wait_for()
        assert await stable() == {pairs: [older], own: [world.space.version]}
        await page.reload()
        await page.get_by_role("img", name=drawn).wait_for()
        assert not page.wrong


async def test_only_an_admin_trains_and_nothing_moves_a_label_that_has_moved(
    world: TrainerWorld, tmp_path: Path
) -> None:
    async with workbench(world, tmp_path) as (url, links):
        for role in ("annotator", "adjudicator"):
            async with httpx.AsyncClient(base_url=url) as http:
                await signed_in(http, links, "somebody", role)
                change = {"request": "once", "revision": 1, "version": world.space.version, "runs": [world.run_id]}
                assert (await http.get("/api/training")).status_code == 403
                assert (await http.get("/api/jobs/any/events")).status_code == 403
                for call in ("train", "cancel", "measure", "publish", "rollback"):
                    refused = await http.post(f"/api/{call}", json=change)
                    assert refused.status_code == 403, call
                    assert f"is an {role}" in refused.json()["detail"]
        async with httpx.AsyncClient(base_url=url) as http:
            await signed_in(http, links, "somebody", "admin")
            [label] = [one for one in (await http.get("/api/training")).json()["labels"] if one["name"] == "stable"]
            moved = {"version": world.space.version, "revision": label["revision"] + 1, "request": "once"}
            refused = await http.post("/api/publish", json=moved)
            assert refused.status_code in (409, 412), refused.text
            assert (await http.get("/api/jobs/unknown/events")).status_code == 404
            measure = {"corpus": world.corpus, "version": world.space.version}
            measured = await http.post("/api/measure", json=measure, timeout=60)
            assert (measured.status_code, measured.json().get("queries")) == (200, 8), measured.text
        assert [job async for job in world.trainer.list_jobs()] == []


async def test_a_label_of_several_spaces_is_rolled_back_in_the_space_of_its_row(
    world: TrainerWorld, tmp_path: Path, registry: Registry
) -> None:
    def other_space(seed: int) -> TinyCheckpoint:
        return write_tiny_checkpoint(world.space.store, seed=seed, base_version=world.space.version)

    before = {"cross-encoder": await second_stable(registry, cross_encoders(world))}
    before[TINY_SPACE] = await second_stable(registry, other_space)
    async with workbench(world, tmp_path) as (url, links), httpx.AsyncClient(base_url=url, timeout=30) as http:
        await signed_in(http, links, "somebody", "admin")

        async def stable() -> dict[str, Any]:
            labels = (await http.get("/api/training")).json()["labels"]
            return {one["space_id"]: one for one in labels if one["name"] == "stable"}

        async def roll_back(space: str) -> Any:
            body = {"label": "stable", "space": space, "revision": 2, "request": f"back-{space}"}
            return (await http.post("/api/rollback", json=body)).json()

        assert (await roll_back("")).get("reason") == "SPACE_AMBIGUOUS"
        for space, (older, newer) in before.items():
            found = await stable()
            assert (found[space]["versions"], found[space]["revision"]) == ([newer], 2)
            assert (await roll_back(space))["label"]["versions"] == [older]
            moved = await stable()
            assert moved.pop(space)["versions"] == [older]
            assert moved == {other: row for other, row in found.items() if other != space}


async def test_the_overview_asks_for_no_more_versions_than_it_shows(
    world: TrainerWorld, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    [row] = await registry.checkpoints.all()
    for n in range(250):
        await registry.checkpoints.add(replace(row, version=f"q{n:016x}", pretrained=False))
    sent: list[str] = []
    to_checkpoint = convert.to_checkpoint

    def counted(row: CheckpointRow, *rest: Any) -> Any:
        sent.append(row.version)
        return to_checkpoint(row, *rest)

    monkeypatch.setattr(convert, "to_checkpoint", counted)
    async with workbench(world, tmp_path) as (url, links), httpx.AsyncClient(base_url=url, timeout=30) as http:
        await signed_in(http, links, "somebody", "admin")
        versions = (await http.get("/api/training")).json()["versions"]
    assert list(versions) == sent


async def test_a_job_of_one_step_is_drawn_and_has_no_phase_after_its_end(bench: Any) -> None:
    progress = {"phase": "exporting", "epochs_done": 1, "steps_done": 1, "steps": 1, "loss": 0.5, "validation_map": 0.0}
    job = {"id": "job-1", "state": "succeeded", "error": "", "version": "v2", "created_at": "2026-01-01T00:00:00Z"}
    job |= {"config": {"corpus": "science", "run_ids": [], "epochs": 1}}
    job |= {"progress": {**progress, "positives": 5, "negatives": 3}}
    known = {
        "runs": [],
        "jobs": [job],
        "versions": {"v2": {"space_id": "s0", "pretrained": False, "created_at": job["created_at"]}},
        "labels": [],
        "gold": 0,
    }
    async with bench() as at:
        page = await at.window("chief", "admin")
        await page.get_by_role("button", name="Sign out").wait_for()  # a page that still loads may pass a route by
        await page.route("**/api/training", lambda route: route.fulfill(json=known))
        told = {"content_type": "text/event-stream", "body": f"data: {json.dumps(job)}\n\n"}
        await page.route("**/api/jobs/*/events", lambda route: route.fulfill(**told))
        await page.goto(f"{at.url}/#training")
        drawn = page.get_by_role("region", name="Job")
        await drawn.get_by_role("img").wait_for()
        assert await drawn.locator("circle.loss").count() == 1
        assert "exporting" not in await drawn.inner_text()


def cross_encoders(world: TrainerWorld) -> Callable[[int], TinyCheckpoint]:
    return lambda seed: write_tiny_cross_encoder_checkpoint(world.space.store, seed=seed)


async def press(page: Any, button: Any) -> None:
    """Presses a button or link by the keyboard."""
    await button.focus()
    await page.keyboard.press("Enter")
