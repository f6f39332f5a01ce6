"""Who may come: by a link, until a lead revokes it; the key that signs sessions is made whole or not at all."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from aeenc_workbench.settings import WorkbenchSettings
from aeenc_workbench.sign_in import Links, Person
from browser.test_annotate import POST
from pydantic import ValidationError

from aeenc.errors import FailedPrecondition

pytestmark = pytest.mark.browser


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
