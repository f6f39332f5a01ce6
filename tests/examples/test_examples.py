"""The examples do what they say: an oracle in ten lines of Python; the client in TypeScript and its oracle, in Node."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aeenc
from aeenc import Channel, errors
from aeenc.evaluation import leaf_recall, load_data, normalised, read_run
from aeenc.exports import conclusions_of
from aeenc.oracle import ABSTAINS, EXPLAINS, REFUSES, Candidate, Task, Verdict, answer_of
from aeenc.oracles.client import Answer, OracleClient
from aeenc.trees import Dataset
from aeenc.trees.files import parse_context
from aeenc.v1 import types_pb2
from services.launcher import fleet as launched
from services.launcher.fleet import BASE_PORT, Fleet, Options
from services.launcher.processes import free_port
from support.command import built_client, npm, running
from support.models.tiny_base_models import write_tiny_base
from support.waiting import reached
from support.worlds.light_fleet import LightFleet, light_fleet
from support.worlds.trainer_world import FACTS
from tools import protos

__all__ = ["light_fleet"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DOCS = EXAMPLES.parent / "docs"
OWN_ORACLE = re.compile(
    r"(?:--oracle |such as |serve\(|start\(|oracle\.(?:js|py) |\"target\": |address\b.* = |Default: )"
    r"\S*?[\w.]:(\d{4,5})"
)
TEXTS = ["a nail is made of iron", "iron is a kind of metal", "the moon is round", "a magnet can attract iron", ""]
TASK = Task(
    "t",
    "run",
    "a magnet can attract an iron nail",
    ("root",),
    (),
    tuple(Candidate(f"p{n}", text, n + 1, 0.5) for n, text in enumerate(TEXTS)),
)
WAYS = [
    *map(aeenc.Retrieval, ("dense", "lexical", "hybrid", "iterative_lexical")),
    aeenc.Retrieval(negative_feedback=0.1),
    aeenc.Retrieval("hybrid", negative_feedback=0.3),
    *(aeenc.Retrieval("hybrid", aeenc.Fusion("reciprocal_rank", weight)) for weight in (0.2, 0.8)),
    *(aeenc.Retrieval("hybrid", aeenc.Fusion(lexical_weight=weight)) for weight in (0.5, 0.9)),
]
PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


async def ask(address: str, token: str | None = None, tasks: tuple[Task, ...] = (TASK,)) -> list[Answer]:
    client = OracleClient(Channel(address, token=token, timeout_s=20))
    try:
        return await reached(lambda: client.judge("run", tasks), 200)
    finally:
        await client.channel.close()


async def test_ten_lines_of_python_are_an_oracle_that_says_where_it_listens(tmp_path: Path):
    source = (EXAMPLES / "ten_lines.py").read_text()
    code = [line for line in source.splitlines() if line.strip() and not line.startswith('"""')]
    assert len(code) <= 10
    moved = tmp_path / "oracle.py"
    moved.write_text(source.replace("127.0.0.1:50060", "127.0.0.1:0"))
    with running([sys.executable, str(moved)], **PIPES) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        said = re.fullmatch(r"oracle mine listens on (127\.0\.0\.1:[1-9]\d*)\n", told)
        assert said, told
        [answer] = await ask(said[1])
    assert answer.annotator == "mine"
    assert [verdict.judgement for verdict in answer.verdicts] == [EXPLAINS, EXPLAINS, REFUSES, EXPLAINS, REFUSES]


def test_every_oracle_of_ones_own_that_is_shown_has_a_port_that_no_part_of_a_fleet_takes():
    root = EXAMPLES.parent
    shown = [root / "README.md", *DOCS.glob("*.md"), root / "services/launcher/commands.py", *EXAMPLES.rglob("*.*")]
    shown += [path for name in ("python", "typescript") for path in (root / "clients" / name).glob("*.md")]
    shown += [root / "clients/python/aeenc/oracle.py", *(root / "clients/typescript").glob("[es]*/*.ts")]
    ports = {
        path: OWN_ORACLE.findall(path.read_text(encoding="utf-8")) for path in shown if path.suffix not in {"", ".pyc"}
    }
    taken = {str(BASE_PORT + offset) for offset in launched._OFFSETS.values()}
    assert sum(len(found) for found in ports.values()) > 15
    assert {path.name: found for path, found in ports.items() if taken & set(found)} == {}


async def expected(task: Task = TASK) -> aeenc.Answer[dict[str, Verdict]]:
    """What the Python example says, whose rule the one in Node follows."""
    spec = importlib.util.spec_from_file_location("own_oracle", EXAMPLES / "own_oracle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return await answer_of(module.SharedWords(), task)


async def test_the_oracle_of_ones_own_says_when_a_node_is_complete():
    rest = (replace(TASK.candidates[0], text="an iron nail can attract"),)
    told = await expected(replace(TASK, accepted=TASK.candidates[3:4], candidates=rest))
    assert told.node_verdict == "complete"
    assert (await expected(replace(TASK, candidates=rest))).node_verdict is None


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the TypeScript client with the packages of its lock; itself, its examples and its tests are built."""
    pages = (protos.TYPESCRIPT / "README.md", DOCS / "integrations.md")
    return built_client(tmp_path_factory.mktemp("npm"), [code for page in pages for code in snippets(page)])


def snippets(page: Path) -> list[str]:
    found = re.findall(r"```ts\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found, f"{page.name} has no example in TypeScript"
    return found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What `aeenc up` starts, on a tiny model, with the corpus `science` and a place for an oracle.

    Yields the variables that lead there.
    """
    root = tmp_path_factory.mktemp("fleet")
    write_tiny_base(root / "base")
    oracle = f"127.0.0.1:{free_port(set())}"
    started = Fleet(root / "home", token="secret")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AEENC_TRAINER_BASE_MODEL", str(root / "base"))
        patch.setenv("AEENC_TRAINER_MAX_TOKENS", "64")
        targets = started.up(Options(base_port=0, oracles={"node": oracle}, credentials=started.credentials))
        try:
            with aeenc.connect(index=targets["index"], token="secret") as client:
                client.index.build("science", [types_pb2.Premise(id=text, text=text) for text in FACTS])
            addresses = {name.upper(): target for name, target in targets.items()}  # as docs/api.md calls them
            yield addresses | {"AEENC_HOME": str(root / "home"), "AEENC_TOKEN": "secret", "AEENC_TEST_ORACLE": oracle}
        finally:
            started.down()


@pytest.mark.sdk
def test_the_typescript_code_is_what_the_protos_generate(typescript: Path, capsys: pytest.CaptureFixture[str]):
    language = protos.typescript(typescript)
    assert protos.check(language) == 0, capsys.readouterr().err
    (language.target / "aeenc" / "v1" / "oracle_pb.ts").write_text("")
    assert protos.check(language) == 1


def test_the_lock_of_the_typescript_client_names_no_registry():
    assert "http" not in (protos.TYPESCRIPT / "package-lock.json").read_text(encoding="utf-8")


@pytest.mark.sdk
async def test_an_oracle_in_node_judges_as_the_one_in_python(typescript: Path):
    environment = {**os.environ, "AEENC_ORACLE_TOKEN": "secret"}
    example = str(typescript / "build" / "examples" / "oracle.js")
    with running(["node", example, "127.0.0.1:0"], **PIPES, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        address = json.loads(line)["address"]
        with pytest.raises(errors.Unauthenticated):
            await ask(address, "guess")
        other = Task("other", "run", "nobody knows", (), (), ())
        first, second = await ask(address, "secret", (TASK, other))
    assert (first.task_id, first.annotator) == ("t", "node-shared-words")
    judged = {verdict.premise_id: verdict.judgement for verdict in first.verdicts}
    assert judged == {name: one.judgement for name, one in (await expected()).verdicts.items()}
    assert set(judged.values()) == {EXPLAINS, ABSTAINS, REFUSES}
    assert (second.task_id, second.verdicts) == ("other", ())


@pytest.mark.sdk
def test_the_typescript_client_works_beside_a_running_fleet(typescript: Path, fleet: dict[str, str]):
    environment = {**os.environ, **fleet}

    def node(*arguments: str) -> str:
        command = ["node", *arguments]
        done = subprocess.run(
            command, cwd=typescript / "build", env=environment, check=False, timeout=100, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    tests = sorted(str(path) for path in (typescript / "build" / "tests").glob("*.test.js"))
    skipped = re.findall(r"ok \d+ - (.*) # SKIP", node("--test", "--test-reporter=tap", *tests))
    assert [name for name in skipped if "odd input" not in name] == []  # tests/sdk/test_odd_inputs.py runs that one
    assert len(node("examples/retrieve.js").splitlines()) == 5
    oracle = fleet["AEENC_TEST_ORACLE"]
    with running(["node", str(typescript / "build" / "examples" / "oracle.js"), oracle], **PIPES) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        told = node("examples/watch.js", "science", "node", FACTS[0])
    assert " SUCCEEDED: " in told.splitlines()[-1]


@pytest.mark.sdk
def test_the_walks_in_node_of_the_page_of_calls_work_beside_a_running_fleet(fleet: dict[str, str], tmp_path: Path):
    if shutil.which("npm") is None:
        pytest.skip("Node and npm are not installed")
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    walks = {name: code for code, name in re.findall(r"^```js\n(// (\w+\.js).*?)^```", page, re.MULTILINE | re.DOTALL)}
    assert sorted(walks) == ["connect.js", "oracle.js", "retrieve.js", "rollback.js"]
    for name, code in walks.items():
        (tmp_path / name).write_text(code.replace('oracle: "mine"', 'oracle: "node"'))
    npm(tmp_path, "install", "--no-audit", "--no-fund", "@grpc/grpc-js", "@grpc/proto-loader")
    own = {
        "TOKEN": "secret",
        "ADMIN_TOKEN": "secret",
        "PROTOS": str(protos.PROTOS),
        "ORACLE": fleet["AEENC_TEST_ORACLE"],
    }

    def node(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["node", name],
            cwd=tmp_path,
            env={**os.environ, **fleet, **own},
            check=False,
            timeout=100,
            capture_output=True,
            text=True,
        )

    found = node("retrieve.js")
    assert found.returncode == 0, found.stderr
    assert {line.split()[1] for line in found.stdout.splitlines()[1:-1]} == {"p1", "p2"}, "what the filter lets through"
    judged = node("oracle.js")
    assert judged.returncode == 0, judged.stderr
    assert "WORK_STATE_SUCCEEDED" in judged.stdout.splitlines()[-1]
    assert "publish a version first" in node("rollback.js").stderr, "nothing was published"


async def ended(fleet: LightFleet, *words: object) -> str:
    """Runs a program of Python beside the fleet, and returns what it says."""
    addresses = {f"AEENC_{name.upper()}": f"127.0.0.1:{server.port}" for name, server in fleet.servers.items()}
    command, environment = [sys.executable, *map(str, words)], {**os.environ, **addresses}
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, check=False, timeout=100, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


async def test_nothing_that_stands_after_a_lemma_is_found_for_it_or_put_before_an_oracle(
    light_fleet: LightFleet, tmp_path: Path
):
    library = load_data(EXAMPLES / "lemmas")
    place = {lemma.id: number for number, lemma in enumerate(library.candidates())}
    own = {lemma.text: lemma.id for lemma in library.candidates()}
    told = (await ended(light_fleet, EXAMPLES / "lemmas" / "premise_selection.py", "mine")).splitlines()
    among_all, before = (float(line.rpartition(" ")[2]) for line in told[:2])
    assert 0 < among_all < before, told
    assert told[-1] == "premises that do not stand before their lemma: 0"
    asked = light_fleet.oracle.asked
    assert [(query, text) for query, text in asked if place[own[text]] >= place[own[query]]] == []
    assert len(asked) > 300
    words = ["evaluate", "--data", EXAMPLES / "lemmas", "--split", "dev", "--corpus", "lemmas"]
    await ended(light_fleet, "-m", "aeenc.cli.main", *words, "--run", tmp_path / "run")
    ranked = read_run(tmp_path / "run")
    assert len(ranked) == len(library.hypotheses("dev"))
    assert [one for query, found in ranked.items() for one in found if place[one] >= place[query]] == []
    answers = 0
    accessible = library.accessible("train") | library.accessible("dev")
    for way in WAYS:
        found = await light_fleet.client.index.rankings(
            "lemmas", list(accessible), retrieval=way, accessible=list(accessible.values())
        )
        for text, hits in zip(accessible, found.results, strict=True):
            assert [hit.id for hit in hits if place[hit.id] >= place[own[text]]] == []
            answers += len(hits)
    assert answers > 10_000, answers


async def test_a_data_set_is_checked_its_facts_listed_for_a_prover_and_what_that_built_scored(
    light_fleet: LightFleet, tmp_path: Path
):
    sample, out = EXAMPLES.parent / "data" / "sample", tmp_path / "out"
    said = await ended(light_fleet, EXAMPLES / "provers.py", sample, out)
    told = dict(line.rsplit(": ", 1) for line in said.splitlines())
    trees = Dataset.load(sample).trees("dev")
    lists = [list(parse_context(json.loads(one)["context"]).values()) for one in (out / "lists.jsonl").open()]
    assert {len(one) for one in lists} == {25}
    assert not conclusions_of(trees) & {normalised(text) for one in lists for text in one}
    assert float(told["leaves in the lists"]) == pytest.approx(leaf_recall(trees, lists).recall, abs=1e-3)
    assert sum(int(shown.split()[-2]) for name, shown in told.items() if name.startswith("MAP")) == 294
    assert told["leaves"].startswith("P ")
    assert "steps" in told


def test_trees_of_one_step_have_the_facts_that_are_leaves(tmp_path: Path):
    sample, out = EXAMPLES.parent / "data" / "sample", tmp_path / "leaves"
    for _ in range(2):  # the second time over what the first has written
        subprocess.run([sys.executable, str(EXAMPLES / "leaf_trees.py"), str(sample), str(out)], check=True, timeout=60)
    before, after = Dataset.load(sample), Dataset.load(out)
    assert after.facts == before.facts
    for split in before.splits:
        found = {tree.id: tree for tree in after.trees(split)}
        assert set(found) == {tree.id for tree in before.trees(split)}
        for tree in before.trees(split):
            leaves = {tree.texts[label] for label in tree.leaves}
            assert {found[tree.id].texts[label] for label in found[tree.id].leaves} == leaves
            assert len(found[tree.id].steps) == 1
