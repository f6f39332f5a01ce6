"""`aeenc token`: what stands in the file afterwards opens the gate, and what is revoked does not."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from aeenc import errors
from aeenc.cli.main import app
from services.kit.credentials.credential_file import load
from services.kit.credentials.gate import Gate

SEARCH, LEASE = "/aeenc.v1.IndexService/Search", "/aeenc.v1.PeopleService/LeaseTask"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def aeenc(*words: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def made(*words: Any) -> str:
    result = aeenc("--json", "token", *words)
    assert result.exit_code == 0, result.output
    return str(json.loads(result.stdout)["token"])


def opens(file: Path, token: str, method: str = SEARCH) -> bool:
    try:
        Gate(path=file, service="index").admit(method, f"Bearer {token}")
    except errors.Unauthenticated:
        return False
    return True


def test_a_new_token_is_shown_once_and_opens_what_was_asked_for(file: Path) -> None:
    limits = [
        "--corpus",
        "science",
        "--service",
        "index",
        "--quota",
        "100/s",
        "--token-quota",
        "2e4",
        "--expires",
        "90d",
    ]
    token = made("new", "lab", "--role", "read", *limits, "--file", file)
    (lab,) = load(file)
    assert (lab.role, lab.corpora, lab.services, lab.calls_per_s) == ("read", ("science",), ("index",), 100)
    assert lab.tokens_per_s == 20_000
    assert lab.expires is not None
    assert token not in file.read_text()
    assert opens(file, token)
    with pytest.raises(errors.PermissionDenied):
        Gate(path=file, service="index").admit(LEASE, f"Bearer {token}")


def test_without_a_file_the_credential_can_be_appended_and_the_token_is_apart(file: Path) -> None:
    result = aeenc("token", "new", "lab", "--role", "annotate")
    token = result.stderr.split()[-1]
    assert token not in result.stdout
    file.write_text("# ours\n" + result.stdout)
    assert opens(file, token, LEASE)
    other = made("new", "other", "--role", "read", "--file", file)
    assert file.read_text().startswith("# ours\n"), "what stands there stays"
    assert opens(file, token)
    assert opens(file, other)


def test_a_rotated_token_ends_after_the_overlap_and_a_revoked_one_at_once(file: Path) -> None:
    first = made("new", "lab", "--role", "read", "--file", file)
    kept = made("new", "other", "--role", "admin", "--file", file)
    second = made("rotate", "lab", "--file", file)
    assert opens(file, first)
    assert opens(file, second)
    third = made("rotate", "lab", "--overlap", "0s", "--file", file)
    assert [opens(file, token) for token in (first, second, third)] == [False, False, True]
    assert json.loads(aeenc("--json", "token", "list", "--file", file).stdout)["credentials"][0]["name"] == "lab"
    assert aeenc("token", "revoke", "lab", "--file", file).exit_code == 0
    assert [opens(file, token) for token in (third, kept)] == [False, True]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["new", "lab", "--role", "read"], 4, "has 'lab' already"),
        (["new", "token", "--role", "read"], 2, "names a token of the settings"),
        (["new", "x", "--role", "read", "--quota", "many"], 2, "--quota 'many' is not a number"),
        (["new", "x", "--role", "read", "--expires", "soon"], 2, "--expires 'soon' is neither"),
        (["new", "x", "--role", "read", "--expires", "0001-01-01T00:00+05:00"], 2, "+05:00 is not in the years"),
        (["rotate", "lab", "--overlap", "9999-12-31T23:59-05:00"], 2, "-05:00 is not in the years"),
        (["revoke", "x"], 2, "has no credential 'x'"),
        (["rotate", "x"], 2, "has no credential 'x'"),
    ],
)
def test_a_wrong_wish_changes_nothing_and_says_why(words: list[str], code: int, told: str, file: Path) -> None:
    made("new", "lab", "--role", "read", "--file", file)
    before = file.read_bytes()
    result = aeenc("token", *words, "--file", file)
    assert (result.exit_code, file.read_bytes()) == (code, before)
    assert told in " ".join(result.stderr.split())


def test_up_with_named_credentials_wants_the_tokens_of_the_services_too(file: Path) -> None:
    result = aeenc("--token", "common", "up", "--tokens", file, "--home", file.parent / "home")
    assert result.exit_code == 2
    assert "--tokens needs --token and --admin-token" in " ".join(result.stderr.split())


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_the_permissions_of_the_file_stay_whatever_the_umask(file: Path, mode: int) -> None:
    made("new", "lab", "--role", "read", "--file", file)
    file.chmod(mode)
    owner = (os.getuid(), 1234 if os.getuid() == 0 else os.getgid())
    os.chown(file, *owner)
    for umask in (0o022, 0o077):
        before = os.umask(umask)
        try:
            made("rotate", "lab", "--file", file)
        finally:
            os.umask(before)
        found = file.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (mode, *owner)
