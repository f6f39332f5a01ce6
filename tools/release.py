"""Builds every distribution from the last commit, checks it, uploads nothing: `python -m tools.release COMMAND`.

    build    git archive ─▶ build twice, same bytes ─▶ twine check ─▶ install into nothing ─▶ SBOM ─▶ pip-audit
    stamp    carries `aeenc.__version__`, or the VERSION given, to every other place that states the version

The tools live in `.venv-release`, pinned by `requirements/release.lock` and made on first use. They need a package
index; the npm package is built where npm is, the Helm chart everywhere.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from email.parser import Parser
from io import BytesIO
from pathlib import Path

from tools.pinned_venv import ROOT, PinnedVenv, SetupError, relative

LOCK = ROOT / "requirements" / "release.lock"
VERSIONED = ROOT / "clients" / "python" / "aeenc" / "__init__.py"
NPM = Path("clients", "typescript")
CHART = ROOT / "deploy" / "helm" / "aeenc" / "Chart.yaml"
CITATION = ROOT / "CITATION.cff"
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def main() -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go; emptied first")
    building.add_argument("--no-audit", action="store_true", help="do not ask PyPI for known vulnerabilities")
    stamping = commands.add_parser("stamp")
    stamping.add_argument("version", nargs="?", default="", help="the new version; by default the SDK's")
    given = parser.parse_args()
    try:
        if given.command == "stamp":
            return stamp(given.version)
        return release(given.out, audits=not given.no_audit)
    except SetupError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1


def version() -> str:
    """The version of every distribution."""
    found = _VERSION.search(VERSIONED.read_text(encoding="utf-8"))
    if found is None:
        raise SetupError(f'{relative(VERSIONED)} has no line `__version__ = "…"`; write it')
    return found[1]


def stamp(new: str) -> int:
    """Write the version everywhere."""
    if new:
        VERSIONED.write_text(_VERSION.sub(f'__version__ = "{new}"', VERSIONED.read_text(encoding="utf-8")))
    for path, text in outdated().items():
        path.write_text(text, encoding="utf-8")
        say(f"wrote {relative(path)}")
    return 0


def outdated() -> dict[Path, str]:
    """The files that state another version than the SDK, with what should stand in them."""
    number = version()
    major, minor = (int(part) for part in number.split(".")[:2])
    above = f"{major + 1}" if major else f"0.{minor + 1}"
    rules = (
        (r'(?m)^version = "[^"]+"$', f'version = "{number}"'),
        (r'"(aeenc(?:\[[\w-]+\])?)>=[\w.]+,<[\w.]+"', rf'"\1>={major}.{minor},<{above}"'),
        (r'("name": "aeenc",\s+"version": )"[^"]+"', rf'\1"{number}"'),
        (r"(?m)^(version|appVersion): [\w.]+$", rf"\1: {number}"),
    )
    found = {}
    node = [ROOT / NPM / name for name in ("package.json", "package-lock.json")]
    for path in [*projects(ROOT), *node, CHART, CITATION]:
        text = fresh = path.read_text(encoding="utf-8")
        for pattern, replacement in rules:
            fresh = re.sub(pattern, replacement, fresh)
        if fresh != text:
            found[path] = fresh
    return found


def projects(root: Path) -> list[Path]:
    """The pyproject files, the SDK's first."""
    clients = sorted(root.glob("clients/*/pyproject.toml"), key=lambda path: path.parent.name != "python")
    return [*clients, root / "pyproject.toml"]


def release(out: Path, *, audits: bool) -> int:
    """Build and check everything; the files are in `out`."""
    if stale := outdated():
        raise SetupError(f"{', '.join(map(relative, stale))}: another version; run `python -m tools.release stamp`")
    if git("status", "--porcelain"):
        say("what is not committed stays out of the release")
    tools = PinnedVenv.locked(ROOT / ".venv-release", LOCK)
    shutil.rmtree(out, ignore_errors=True)
    build(out, tools)
    with tempfile.TemporaryDirectory() as scratch:
        mask = os.umask(0o077)  # as another person may have it
        build(Path(scratch), tools)
        os.umask(mask)
        compare(out, Path(scratch))
    wheels = sorted(out.glob("*.whl"))
    for wheel in wheels:
        check_metadata(wheel)
    archives = [str(path) for path in (*wheels, *sorted(out.glob("*.tar.gz")))]
    run(tools, "twine", "check", "--strict", *archives)
    with tempfile.TemporaryDirectory() as scratch:
        installed = try_out(Path(scratch) / "venv", wheels)
        site = next(installed.path.glob("lib/python*/site-packages"))
        for origin in site.glob("*.dist-info/direct_url.json"):
            origin.unlink()  # it names a folder of this machine, and the SBOM would repeat it
        sbom = out / f"aeenc-{version()}.cdx.json"
        run(tools, "cyclonedx_py", "environment", "--output-reproducible", "-o", str(sbom), str(installed.python))
        if audits:
            run(tools, "pip_audit", "--path", str(site), "--progress-spinner", "off")
    say(f"{len(archives)} archives and {sbom.name} are in {relative(out)}; nothing is uploaded")
    say("aeenc-services stays private (docs/decisions/0022); the others: twine upload, npm publish, helm push")
    return 0


def build(out: Path, tools: PinnedVenv, *, folders: Sequence[str] = ()) -> None:
    """Build the last commit's distributions into `out`: all, or those in these folders."""
    out.mkdir(parents=True, exist_ok=True)
    epoch = int(git("log", "-1", "--format=%ct"))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as scratch:
        stage = Path(scratch)
        with tarfile.open(fileobj=BytesIO(git_bytes("archive", "HEAD"))) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
            tar.extractall(stage)
        for project in projects(stage):
            folder = project.parent
            if folders and str(folder.relative_to(stage)) not in folders:
                continue
            if folder != stage:
                shutil.copy(stage / "LICENSE", folder)
            say(f"building {folder.relative_to(stage)}")
            run(tools, "build", "--no-isolation", "--outdir", str(out), str(folder), environment=environment)
        if not folders and shutil.which("npm"):
            shutil.copy(stage / "LICENSE", stage / NPM)
            say(f"building {NPM}")
            command(["npm", "ci", "--silent", "--no-audit"], cwd=stage / NPM)
            command(["npm", "pack", "--silent", "--pack-destination", str(out)], cwd=stage / NPM)
            packed = out / f"aeenc-{version()}.tgz"
            packed.replace(packed.with_name(f"npm-{packed.name}"))  # beside the sdist of the same name
        if not folders:
            say(f"packing {CHART.parent.relative_to(ROOT)}")
            package_chart(stage / CHART.parent.relative_to(ROOT), out, epoch)
    for sdist in out.glob("*.tar.gz"):
        normalise(sdist, epoch)


def normalise(sdist: Path, epoch: int) -> None:
    """Write an sdist again without the moment and the person that made it; setuptools leaves both in."""
    with tarfile.open(sdist) as tar:
        held = [(member.name, tar.extractfile(member) if member.isfile() else None) for member in tar]
        pack(sdist, {name: file.read() if file else None for name, file in held}, epoch)


def package_chart(chart: Path, out: Path, epoch: int) -> None:
    """Pack a Helm chart as `helm package` lays it out: NAME-VERSION.tgz, links as the files that they lead to."""
    name, number = re.findall(r"(?m)^(?:name|version): (\S+)$", (chart / "Chart.yaml").read_text())
    left_out = tuple((chart / ".helmignore").read_text().split())
    files = {path.relative_to(chart).as_posix(): path for path in chart.rglob("*") if path.is_file()}
    held = {f"{name}/{place}": path.read_bytes() for place, path in files.items() if not place.startswith(left_out)}
    pack(out / f"{name}-{number}.tgz", held, epoch)


def pack(path: Path, held: Mapping[str, bytes | None], epoch: int) -> None:
    """Write a gzipped tar whose bytes depend on its files alone; None is a folder."""
    with (
        path.with_suffix(".new").open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in sorted(held.items()):
            member = tarfile.TarInfo(name)
            member.mtime, member.type = epoch, tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            member.size, member.mode = len(content or b""), 0o755 if content is None else 0o644
            tar.addfile(member, BytesIO(content or b""))
    path.with_suffix(".new").replace(path)


def compare(first: Path, second: Path) -> None:
    """Fail unless both folders hold the same bytes under the same names."""
    names = {path.name for folder in (first, second) for path in folder.iterdir()}
    differ = sorted(name for name in names if sha256(first / name) != sha256(second / name))
    if differ:
        raise SetupError(f"built twice, not the same bytes: {', '.join(differ)}; find what depends on time or place")
    say(f"built twice, the same bytes: {len(names)} files")


def check_metadata(wheel: Path) -> None:
    """Fail unless a wheel has the version, a description, an address, the licence and its types."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(next(n for n in names if n.endswith("/METADATA"))).decode())
    held = {
        f"version {version()}": metadata["Version"] == version(),
        "description": len(str(metadata.get_payload())) > 200,
        "project urls": metadata.get("Project-URL"),
        "classifiers": metadata.get("Classifier"),
        "licence file": metadata.get("License-File") and any(name.endswith("licenses/LICENSE") for name in names),
        "py.typed": any(name.endswith("/py.typed") for name in names),
    }
    if missing := [what for what, is_there in held.items() if not is_there]:
        raise SetupError(f"{wheel.name} has no {', '.join(missing)}")


def try_out(folder: Path, wheels: Sequence[Path]) -> PinnedVenv:
    """Install the wheels into an empty environment, outside the checkout, and use what they bring."""
    venv = PinnedVenv(folder)
    venv.create()
    by_name = {wheel.name.split("-")[0]: wheel for wheel in wheels}
    sdk = by_name.pop("aeenc")
    venv.install(f"aeenc[cli] @ {sdk.as_uri()}", *map(str, by_name.values()))
    command([str(venv.python), "-m", "pip", "check"], cwd=folder)
    told = command([str(folder / "bin" / "aeenc"), "--version"], cwd=folder)
    if told.split() != ["aeenc", version()]:
        raise SetupError(f"the installed command says {told!r}, not version {version()}")
    command([str(folder / "bin" / "aeenc"), "up", "--help"], cwd=folder)  # aeenc-services adds `up`
    say(f"installed {len(wheels)} wheels in an empty environment")
    return venv


def run(venv: PinnedVenv, module: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run a module of an environment. Raises SetupError with its output when it fails."""
    return command([str(venv.python), "-m", module, *arguments], cwd=ROOT, environment=environment)


def command(arguments: list[str], *, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run a program whose files all may read; returns what it wrote. Raises SetupError with that when it fails."""
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        umask=0o022,  # a wheel and the npm package keep the modes of their files
    )
    if done.returncode:
        raise SetupError(f"{' '.join(arguments[:4])} … failed:\n{done.stdout}")
    return done.stdout


def git(*arguments: str) -> str:
    """What git writes to its output."""
    return git_bytes(*arguments).decode().strip()


def git_bytes(*arguments: str) -> bytes:
    """The same, as bytes. Raises SetupError outside a clone."""
    whole = ["git", "-c", "tar.umask=0022", *arguments]  # an archive's files are readable, too
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SetupError(f"git {arguments[0]} failed: {done.stderr.decode().strip()}; a release is made in a clone")
    return done.stdout


def sha256(path: Path) -> str:
    """The hash of a file; empty without one."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def say(message: str) -> None:
    """One line to the person who waits."""
    print(f"release: {message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
