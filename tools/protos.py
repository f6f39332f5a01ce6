"""Generates `clients/python/aeenc/v1` from `protos/`, and checks both: `python -m tools.protos COMMAND`.

The generator lives in `.venv-protoc`, pinned by `requirements/protoc.lock` and made on first use: generated code
refuses a runtime older than its generator, so the generator is older than what the services run with.

`generate --typescript` and `check --typescript` do the same for `clients/typescript/src/gen`. They need the packages of
its lock: run `npm ci` in that folder first.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tools.pinned_venv import ROOT, PinnedVenv, SetupError, relative

PROTOS = ROOT / "protos"
PACKAGE = Path("aeenc", "v1")
LOCK = ROOT / "requirements" / "protoc.lock"
TYPESCRIPT = ROOT / "clients" / "typescript"


@dataclass(frozen=True)
class Language:
    """The generated code of one language: its folder, its files there, protoc's options, protos beyond our own."""

    target: Path
    patterns: tuple[str, ...]
    options: tuple[str, ...]  # {out}: the folder to write to
    sources: tuple[str, ...] = ()
    remedy: str = "make proto"


PYTHON = Language(
    ROOT / "clients" / "python",
    tuple(f"{PACKAGE}/*{ending}" for ending in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")),
    tuple(f"--{kind}_out={{out}}" for kind in ("python", "pyi", "grpc_python")),
)


def typescript(folder: Path = TYPESCRIPT) -> Language:
    """TypeScript in a folder with the packages of the client's lock. Raises SetupError without them."""
    plugin = folder / "node_modules" / ".bin" / "protoc-gen-es"
    if not plugin.is_file():
        raise SetupError(f"{plugin} is missing. Run `npm ci` in {relative(folder)}.")
    return Language(
        folder / "src" / "gen",
        ("**/*_pb.ts",),
        (f"--plugin=protoc-gen-es={plugin}", "--es_out={out}", "--es_opt=target=ts,import_extension=js"),
        ("google/rpc/error_details.proto",),  # @bufbuild/protobuf has google.protobuf, not google.rpc
        "python -m tools.protos generate --typescript",
    )


def main() -> int:
    """Run one command; returns the exit status."""
    commands = {"generate": generate, "check": check}
    checks = {"lint": lint, "breaking": breaking}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=(*commands, *checks))
    parser.add_argument("--typescript", action="store_true", help="the code of clients/typescript (needs npm ci there)")
    given = parser.parse_args()
    try:
        if given.command in checks:
            return checks[given.command]()
        return commands[given.command](typescript() if given.typescript else PYTHON)
    except SetupError as error:
        print(f"protos: {error}", file=sys.stderr)
        return 1


def generate(language: Language) -> int:
    """Write the generated files, and remove those whose .proto is gone."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh, target = Path(scratch), language.target
        run_protoc(language, fresh)
        for stale in generated_names(language, target) - generated_names(language, fresh):
            (target / stale).unlink()
        for name in generated_names(language, fresh):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fresh / name, target / name)
        print(f"protos: wrote {len(generated_names(language, fresh))} files below {relative(target)}")
    return 0


def check(language: Language) -> int:
    """Fail unless the files in git are what the generator writes."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh, target = Path(scratch), language.target
        run_protoc(language, fresh)
        names = generated_names(language, fresh) | generated_names(language, target)
        stale = sorted(name for name in names if content(fresh / name) != content(target / name))
    if stale:
        print(f"protos: not what protos/ generates: {', '.join(stale)}. Run `{language.remedy}`.", file=sys.stderr)
    return 1 if stale else 0


def lint() -> int:
    """Run buf's linter by buf.yaml; it also asks for a comment on every element."""
    return subprocess.run([buf(), "lint"], cwd=ROOT, check=False).returncode


def breaking() -> int:
    """Fail if the protos break users of the last release, a tag v…; before the first one there are none."""
    tag = git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")
    archive = git("archive", tag.decode().strip(), "--", "buf.yaml", "protos") if tag else None
    if archive is None:
        print("protos: no release to compare with yet: breaking changes not checked")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
            tar.extractall(scratch)
        return subprocess.run([buf(), "breaking", "--against", scratch], cwd=ROOT, check=False).returncode


def run_protoc(language: Language, out: Path) -> None:
    """Generate the code of a language into `out`."""
    venv = PinnedVenv.locked(ROOT / ".venv-protoc", LOCK)
    # googleapis-common-protos installs google/rpc/*.proto beside its Python modules.
    site = subprocess.run(
        [str(venv.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    sources = sorted(str(path.relative_to(PROTOS)) for path in (PROTOS / PACKAGE).glob("*.proto"))
    options = [option.format(out=out) for option in language.options]
    command = [str(venv.python), "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{site}", *options]
    command += [*sources, *language.sources]
    if subprocess.run(command, cwd=PROTOS, check=False).returncode:
        raise SetupError("protoc failed (above)")


def generated_names(language: Language, folder: Path) -> set[str]:
    """The generated files below a folder, as paths from there."""
    return {str(path.relative_to(folder)) for pattern in language.patterns for path in folder.glob(pattern)}


def content(path: Path) -> bytes | None:
    """A file's bytes, None where there is no file."""
    return path.read_bytes() if path.is_file() else None


def buf() -> str:
    """The buf program of the environment that runs this (wheel buf-bin)."""
    program = Path(sysconfig.get_path("scripts"), "buf")
    if not program.is_file():
        raise SetupError(f"{program} is missing. Run `make setup`.")
    return str(program)


def git(*arguments: str) -> bytes | None:
    """A git command's output, None where it fails or there is no git."""
    try:
        result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout if result.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
