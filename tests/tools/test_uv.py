import sys
from pathlib import Path

import pytest

from tools import pinned_venv
from tools.pinned_venv import PinnedVenv, SetupError
from tools.uv import Uv, UvError, environment_of, options_of


def test_uv_gets_what_pip_is_configured_to() -> None:
    options = options_of(
        [
            ":env:.find-links='/wheels'",
            "global.cert='/ca.pem'",
            "global.extra-index-url='https://a/simple\\nhttps://b/simple'",
            "global.find-links='/old /older'",
            "freeze.timeout='1'",
            "install.find-links='/new /newer'",
        ]
    )
    assert environment_of(options, {}) == {
        "SSL_CERT_FILE": "/ca.pem",
        "UV_FIND_LINKS": "/wheels",
        "UV_INDEX": "https://a/simple https://b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert environment_of({"find-links": "/new /newer"}, {})["UV_FIND_LINKS"] == "/new,/newer"


def test_what_is_set_for_uv_wins_over_what_is_set_for_pip() -> None:
    set_for_uv = {"UV_DEFAULT_INDEX": "https://uv/simple"}
    assert environment_of({"index-url": "https://pip/simple"}, set_for_uv)["UV_DEFAULT_INDEX"] == "https://uv/simple"


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedVenv:
    """An environment whose uv fails and whose pip says what it is called with."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *config*) exit 0;; esac\necho "$@" >> {tmp_path}/calls\n')
    python.chmod(0o755)
    python.with_name("uv").write_text("#!/bin/sh\necho no such wheel >&2\nexit 1\n")
    python.with_name("uv").chmod(0o755)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)  # else the uv of the environment that runs this
    monkeypatch.delenv("UV", raising=False)
    return PinnedVenv(tmp_path)


def test_pip_installs_what_uv_cannot(venv: PinnedVenv, capsys: pytest.CaptureFixture[str]) -> None:
    venv.install("--no-deps", "six")
    venv.install("seven")
    assert [line.split()[:5] for line in (venv.path / "calls").read_text().splitlines()] == [
        ["-m", "pip", "install", "--no-deps", "six"],
        ["-m", "pip", "install", "seven", "--disable-pip-version-check"],
    ]
    assert capsys.readouterr().out.count("no such wheel") == 1  # after its first failure uv is not tried again


def test_a_failure_of_both_names_the_remedy(venv: PinnedVenv) -> None:
    venv.python.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SetupError, match="PIP_FIND_LINKS"):
        venv.install("six")


def test_pip_alone_installs_with_uv_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, venv: PinnedVenv) -> None:
    monkeypatch.setenv("UV", "0")
    monkeypatch.setattr(pinned_venv, "Uv", None)
    PinnedVenv(venv.path).install("six")
    assert (venv.path / "calls").is_file()


def test_a_uv_that_does_not_run_is_an_error_of_uv(venv: PinnedVenv) -> None:
    uv = Uv(venv.python.with_name("uv"), venv.python)
    venv.python.with_name("uv").chmod(0o644)
    with pytest.raises(UvError, match="does not run"):
        uv.install("six")


def test_a_constraint_of_pip_holds_for_what_is_resolved_and_does_not_keep_uv_from_installing_a_lock(
    venv: PinnedVenv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.uv.pip_options", lambda _: {"constraint": "/etc/constraints.txt"})
    venv.python.with_name("uv").write_text(f'#!/bin/sh\necho "$UV_CONSTRAINT:" >> {venv.path}/told\n')
    uv = Uv(venv.python.with_name("uv"), venv.python)
    uv.install("--no-deps", "--require-hashes", "-r", "a.lock")
    uv.install("torch==2.13.0")
    assert (venv.path / "told").read_text().split() == [":", "/etc/constraints.txt:"]
