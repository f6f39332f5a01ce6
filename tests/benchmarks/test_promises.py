"""`make bench NAME=promises`: its tables name every RPC and tests that exist."""

import ast
from pathlib import Path

import pytest

from benchmarks.promises.finding_table import FINDINGS, Finding
from benchmarks.promises.findings import missing
from benchmarks.promises.mutations.table import unlisted
from benchmarks.promises.retention import growth

ROOT = Path(__file__).resolve().parents[2]


def defined(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_finding_stands_once_and_names_tests_that_exist():
    assert list(FINDINGS) == list(range(1, 31))
    for number, finding in FINDINGS.items():
        for node in finding.nodes:
            path, _, name = node.partition("::")
            assert name in defined(ROOT / path), f"finding {number} names {node}, which is not there"


@pytest.mark.parametrize(
    ("outcomes", "faults"),
    [
        ({}, ["test_one: not run", "test_two: not run"]),
        ({"tests/a.py::test_one": ["passed", "passed"], "tests/a.py::test_two": ["skipped"]}, ["test_two: skipped"]),
        ({"tests/a.py::test_one": ["passed"], "tests/a.py::test_two": ["passed"]}, []),
    ],
)
def test_a_finding_holds_only_when_all_its_tests_have_run_and_passed(outcomes, faults):
    assert missing(Finding("", "", ("a.py::test_one", "a.py::test_two")), outcomes) == faults


def test_a_finding_without_a_test_does_not_hold():
    assert missing(Finding("", ""), {}) == ["no test"]


def test_every_rpc_stands_in_a_table_as_one_that_reads_or_changes_something():
    assert unlisted() == []


def test_growth_compares_the_last_third_with_the_middle_one():
    assert growth([9, 9, 9, 1, 1, 1, 2, 2, 2]) == 1.0
