"""Generates `clients/python/aeenc/v1` from `protos/`, and checks both: `python -m tools.protos COMMAND`.

The generator lives in `.venv-protoc`, pinned by `requirements/protoc.lock` and made on first use: generated code
refuses a runtime older than its generator, so the generator is older than what the services run with.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from tools.pinned_venv import ROOT, PinnedVenv, SetupError, key_of, relative

PROTOS = ROOT / "protos"
CLIENT = ROOT / "clients" / "python"
PACKAGE = Path("aeenc", "v1")
LOCK = ROOT / "requirements" / "protoc.lock"


def main() -> int:
    """Run one command; returns the exit status."""
    commands = {"generate": generate, "check": check, "lint": lint, "breaking": breaking}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=commands)
    try:
        return commands[parser.parse_args().command]()
    except SetupError as error:
        print(f"protos: {error}", file=sys.stderr)
        return 1


def generate() -> int:
    """Write the generated files, and remove those whose .proto is gone."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = run_protoc(Path(scratch))
        target = CLIENT / PACKAGE
        target.mkdir(parents=True, exist_ok=True)
        for stale in generated_names(target) - generated_names(fresh):
            (target / stale).unlink()
        for name in generated_names(fresh):
            shutil.copyfile(fresh / name, target / name)
        print(f"protos: wrote {len(generated_names(fresh))} files to {relative(target)}")
    return 0


def check() -> int:
    """Fail unless the files in git are what the generator writes."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh, target = run_protoc(Path(scratch)), CLIENT / PACKAGE
        names = generated_names(fresh) | generated_names(target)
        stale = sorted(name for name in names if content(fresh / name) != content(target / name))
    if stale:
        print(f"protos: not what protos/ generates: {', '.join(stale)}. Run `make proto`.", file=sys.stderr)
    return 1 if stale else 0


def lint() -> int:
    """Run buf's linter by buf.yaml; it also asks for a comment on every element."""
    return subprocess.run([buf(), "lint"], cwd=ROOT, check=False).returncode


def breaking() -> int:
    """Fail if the protos break users of the last release, or of `main` where nothing has been released."""
    base = last_release()
    archive = git("archive", base, "--", "buf.yaml", "protos") if base else None
    if archive is None:
        print("protos: nothing to compare with yet (no tag and no main with protos): breaking changes not checked")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extractall(scratch, filter="data")
        return subprocess.run([buf(), "breaking", "--against", scratch], cwd=ROOT, check=False).returncode


def run_protoc(out: Path) -> Path:
    """Generate into `out`; returns the folder of the generated package."""
    venv = PinnedVenv(ROOT / ".venv-protoc")
    key = key_of((LOCK,))
    if not venv.is_current(key):
        venv.create()
        venv.install_lock(LOCK)
        venv.mark_current(key)
    # googleapis-common-protos installs google/rpc/*.proto beside its Python modules.
    site = subprocess.run(
        [str(venv.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    sources = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / PACKAGE).glob("*.proto"))
    outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    command = [str(venv.python), "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{site}", *outputs, *sources]
    if subprocess.run(command, cwd=PROTOS, check=False).returncode:
        raise SetupError("protoc failed (above)")
    return out / PACKAGE


def generated_names(folder: Path) -> set[str]:
    """The names of a folder's generated files."""
    return {path.name for pattern in ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py") for path in folder.glob(pattern)}


def content(path: Path) -> bytes | None:
    """A file's bytes, None where there is no file."""
    return path.read_bytes() if path.is_file() else None


def buf() -> str:
    """The buf program of the environment that runs this (wheel buf-bin)."""
    program = Path(sysconfig.get_path("scripts"), "buf")
    if not program.is_file():
        raise SetupError(f"{program} is missing. Run `make setup`.")
    return str(program)


def last_release() -> str | None:
    """The newest tag before HEAD, or a branch `main`."""
    tag = git("describe", "--tags", "--abbrev=0")
    if tag:
        return tag.decode().strip()
    branches = ("main", "origin/main")
    return next((branch for branch in branches if git("cat-file", "-e", f"{branch}:protos") is not None), None)


def git(*arguments: str) -> bytes | None:
    """A git command's output, None where it fails or there is no git."""
    try:
        result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout if result.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
