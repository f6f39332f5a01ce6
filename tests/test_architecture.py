"""The rules that import-linter cannot state: who knows the transport, sizes, no pickle.

Layers, independence of services and circles are contracts in `pyproject.toml`; `make check` runs them, and looks
whether generated code is fresh.
"""

import ast
import gc
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools import release, values

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ROOT / "services"
SDK = ROOT / "clients" / "python" / "aeenc"
GENERATED = {SDK / "v1", SDK / "blocking.py", *(values.FOLDER / f"{name}.py" for name in ("__init__", *values.FILES))}

# The only places of a service that know the transport: the servicer, the wiring, and convert.py, which turns messages
# into the domain's values and back.
TRANSPORT_MODULES = {"servicer.py", "__main__.py", "convert.py"}
TRANSPORT_PACKAGES = ("grpc", "grpc_health", "grpc_reflection", "grpc_status", "google", "aeenc.v1")

# What clients/python/pyproject.toml lists, by import name.
SDK_DEPENDENCIES = {"aeenc", "google", "grpc", "numpy"}
EXTRA_DEPENDENCIES = {  # by folder
    "adapters": {"fsspec", "pyarrow", "pydantic", "pydantic_settings", "starlette", "upath", "uvicorn"},
    "cli": {"click", "rich", "typer"},
}

# The integrations: folder of clients/, what it may import beside the SDK and the standard library.
INTEGRATIONS = {
    "gateway": {
        "aeenc_gateway",
        "fastapi",
        "numpy",
        "orjson",
        "pydantic",
        "pydantic_core",
        "pydantic_settings",
        "starlette",
        "uvicorn",
    },
    "haystack": {"haystack", "haystack_integrations"},
    "langchain": {"langchain_aeenc", "langchain_core", "pydantic"},
    "llama-index": {"llama_index"},
    "mcp": {"aeenc_mcp", "mcp", "pydantic"},
    "workbench": {
        "aeenc_workbench",
        "authlib",
        "httpx",
        "itsdangerous",
        "joserfc",
        "pydantic",
        "pydantic_settings",
        "starlette",
        "typer",
        "uvicorn",
    },
}

MAX_LINES = 500
MAX_FILES = 12  # Python files in one folder
MAX_PROTO_LINES, MAX_CALLS = 3300, 12  # of all protos; of SamplerService
# What may stand at the top of a service beside its folders.
TOP = {"__init__.py", "__main__.py", "convert.py", "metrics.py", "servicer.py", "settings.py", "values.py"}

PICKLING_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
ALLOWED = "(allow_pickle=…)"
PICKLING_CALLS = {"torch.load", "torch.save", "torch.jit.load", "pandas.read_pickle"}

TEXT_SUFFIXES = {".in", ".json", ".lock", ".md", ".proto", ".py", ".sh", ".toml", ".ts", ".txt", ".yaml", ".yml"}
TEXT_NAMES = {"Dockerfile", "Makefile", "run"}
SKIPPED_FOLDERS = {"__pycache__", "build", "dist", "data", "node_modules"}
MACHINE_PATH = re.compile(r"(?<![\w.}])/(home|Users|root|work|opt/wheels|opt/pypi|tmp/w)/|[A-Z]:\\\\?Users")


@pytest.fixture(scope="module", autouse=True)
def _no_collector() -> Iterator[None]:
    """Python 3.11 loses count while it builds a syntax tree when the collector then ends other tests' coroutines."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_the_sdk_imports_no_service_and_nothing_beyond_its_dependencies():
    offences = []
    for file in python_files(SDK):
        folder = file.relative_to(SDK).parts[0]
        for line, name in imports(file):
            top = name.split(".")[0]
            allowed = SDK_DEPENDENCIES | EXTRA_DEPENDENCIES.get(folder, set())
            refused = top not in allowed and top not in sys.stdlib_module_names
            if top == "services" or (refused and folder != "oracles"):
                offences.append(f"{where(file, line)} imports {name}")
    assert not offences, "other systems install the SDK with these dependencies only:\n" + "\n".join(offences)


def test_an_integration_knows_the_sdk_and_the_core_of_its_framework():
    folders = {path.parent.name for path in ROOT.glob("clients/*/pyproject.toml")} - {"python"}
    assert folders == set(INTEGRATIONS)
    offences = []
    for folder, allowed in INTEGRATIONS.items():
        for file in python_files(ROOT / "clients" / folder):
            if "tests" in file.parts[len(ROOT.parts) :]:
                continue
            for line, name in imports(file):
                top = name.split(".")[0]
                if top not in allowed | {"aeenc"} | sys.stdlib_module_names:
                    offences.append(f"{where(file, line)} imports {name}")
    assert not offences, "what else is needed belongs into the SDK:\n" + "\n".join(offences)


def test_an_integration_is_complete():
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    for folder in INTEGRATIONS:
        files = ROOT / "clients" / folder
        project = tomllib.loads((files / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["license"] == "Apache-2.0"
        assert all(">=" in dependency for dependency in project["dependencies"]), "give every dependency a lower bound"
        assert (files / "README.md").is_file()
        assert list(files.rglob("py.typed"))
        assert list((ROOT / "tests" / "browser" if folder == "workbench" else files / "tests").glob("test_*.py"))
        assert f"clients/{folder}" in page


def test_domain_modules_know_neither_grpc_nor_the_messages():
    offences = []
    for file in domain_modules():
        for line, name in imports(file):
            if any(name == package or name.startswith(package + ".") for package in TRANSPORT_PACKAGES):
                offences.append(f"{where(file, line)} imports {name}")
    assert not offences, f"transport belongs in {', '.join(sorted(TRANSPORT_MODULES))}:\n" + "\n".join(offences)


def test_every_distribution_states_the_version_of_the_sdk():
    assert not release.outdated(), "run python -m tools.release stamp"


def test_no_file_is_longer_than_a_reader_can_hold():
    lengths = {path_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in hand_written()}
    too_long = {path: n for path, n in lengths.items() if n > MAX_LINES}
    assert not too_long, f"over {MAX_LINES} lines; split by concept: {too_long}"
    protos = {file.stem: file.read_text(encoding="utf-8") for file in values.PROTOS.glob("*.proto")}
    lines = sum(text.count("\n") for text in protos.values())
    assert lines <= MAX_PROTO_LINES, f"the protos have {lines} lines; say once what is said twice"
    calls = protos["sampler"].partition("service SamplerService {")[2].partition("\n}")[0].count("  rpc ")
    assert calls <= MAX_CALLS, (
        f"SamplerService has {calls} calls, at most {MAX_CALLS}; people have a service of their own"
    )


def test_no_folder_holds_more_files_than_a_reader_can_survey():
    counts = Counter(path_of(file.parent) for file in hand_written())
    too_full = {folder: n for folder, n in counts.items() if n > MAX_FILES}
    assert not too_full, f"over {MAX_FILES} Python files; make rooms by what happens inside: {too_full}"


def test_at_the_top_of_a_service_stand_the_files_that_every_service_has():
    for service in ("encoder", "index", "sampler", "trainer"):
        others = {file.name for file in (SERVICES / service).glob("*.py")} - TOP
        assert not others, f"services/{service}: {sorted(others)} belong into a folder"
        assert (SERVICES / service / "README.md").is_file()


def test_nothing_is_pickled():
    offences = []
    for file in hand_written():
        offences += [f"{where(file, n)} imports {name}" for n, name in imports(file) if name in PICKLING_MODULES]
        offences += [f"{where(file, n)} calls {what}" for n, what in calls(file) if reads_pickles(what)]
    assert not offences, "a pickle runs code when read; use safetensors, npy, json:\n" + "\n".join(offences)


def test_services_read_arrays_in_the_one_place_where_headers_wait_for_each_other():
    arrays = SERVICES / "corpus" / "arrays.py"
    files = [file for file in python_files(SERVICES) if file != arrays]
    offences = [where(file, line) for file in files for line, name in calls(file) if name == "np.load"]
    assert not offences, "read them by services.corpus.arrays:\n" + "\n".join(offences)


def test_no_path_of_a_developers_machine_is_written_down():
    offences = []
    for file in text_files():
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if MACHINE_PATH.search(line):
                offences.append(f"{where(file, number)}: {line.strip()[:100]}")
    assert not offences, "\n".join(offences)


def test_packages_that_own_the_same_module_are_never_installed_together():
    locked = (ROOT / "requirements" / "cpu.lock").read_text(encoding="utf-8")
    names = set(re.findall(r"^([a-z0-9][a-z0-9._-]*)==", locked, flags=re.MULTILINE))
    assert {"onnxruntime", "faiss-cpu"} <= names
    assert not names & {"onnxruntime-gpu", "faiss-gpu", "torch", "triton"}
    assert not [name for name in names if name.startswith("nvidia-")]


def python_files(folder: Path) -> list[Path]:
    """The Python files below a folder, generated ones left out."""
    return sorted(
        file
        for file in folder.rglob("*.py")
        if not GENERATED & {file, *file.parents} and not SKIPPED_FOLDERS & set(file.relative_to(folder).parts)
    )


def domain_modules() -> Iterator[Path]:
    """What is neither transport nor shared machinery: kit serves gRPC and launcher starts processes."""
    for file in python_files(SERVICES):
        service, *rest = file.relative_to(SERVICES).parts
        if rest and service not in {"kit", "store", "launcher"} and file.name not in TRANSPORT_MODULES:
            yield file


def hand_written() -> Iterator[Path]:
    """Every Python file that a person writes."""
    for folder in ("services", "clients", "tests", "tools", "benchmarks", "examples"):
        yield from python_files(ROOT / folder)


def text_files() -> Iterator[Path]:
    """Every text file of the repository; this one is left out, it names what it looks for."""
    for path in sorted(ROOT.iterdir()):
        hidden = path.name.startswith(".") and path.name not in {".ci", ".dockerignore", ".gitignore", ".editorconfig"}
        if hidden or path.name in SKIPPED_FOLDERS:
            continue
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            known = file.suffix in TEXT_SUFFIXES or file.name in TEXT_NAMES or file.name.startswith(".")
            if known and file.is_file() and file != Path(__file__) and not SKIPPED_FOLDERS & set(file.parts):
                yield file


@cache
def nodes(file: Path) -> list[ast.AST]:
    """All imports and calls of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, in functions too; `from a import b` counts as a.b as well."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def calls(file: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every call; one that allows pickles says so."""
    for node in nodes(file):
        if isinstance(node, ast.Call):
            allows = any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in node.keywords)
            yield node.lineno, ast.unparse(node.func) + (ALLOWED if allows else "")


def reads_pickles(call: str) -> bool:
    return call in PICKLING_CALLS or call.endswith(ALLOWED)


def path_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def where(file: Path, line: int) -> str:
    return f"{path_of(file)}:{line}"


def test_the_page_of_settings_is_what_the_settings_say():
    from tools import settings_doc

    assert settings_doc.PATH.read_text(encoding="utf-8") == settings_doc.render(), "run python -m tools.settings_doc"
    schema = settings_doc.CHART.read_text(encoding="utf-8")
    assert schema == settings_doc.chart_schema(), "run python -m tools.settings_doc"
