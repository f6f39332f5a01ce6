"""Runs the tests of all findings in one pytest; a finding holds when each of its tests has passed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from benchmarks.harness.rows import ROOT, Rows
from benchmarks.promises.finding_table import FINDINGS, Finding

Outcomes = Mapping[str, Sequence[str]]  # of a node id: one word for each of its parameters


def run_tests(nodes: Sequence[str]) -> tuple[dict[str, list[str]], str]:
    """The outcomes of tests by node id, without parameters, and the end of what pytest said."""
    with tempfile.TemporaryDirectory(prefix="aeenc-bench-") as scratch:
        report = Path(scratch) / "junit.xml"
        options = ["-q", "-m", "", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junitxml={report}"]
        command = [sys.executable, "-m", "pytest", *options, *nodes]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        outcomes: dict[str, list[str]] = defaultdict(list)
        if report.exists():
            for case in ET.parse(report).iter("testcase"):
                node = f"{case.get('file')}::{str(case.get('name')).partition('[')[0]}"
                outcomes[node].append(_outcome(case))
        return outcomes, (done.stdout + done.stderr)[-3000:]


def _outcome(case: ET.Element) -> str:
    for word in ("failure", "error", "skipped"):
        if case.find(word) is not None:
            return word
    return "passed"


def missing(finding: Finding, outcomes: Outcomes) -> list[str]:
    """Lists why a finding does not hold: it has no test, or tests did not run or did not pass."""
    if not finding.tests:
        return ["no test"]
    found = {node: list(outcomes.get(node, ())) or ["not run"] for node in finding.nodes}
    return [
        f"{node.rpartition('::')[2]}: {', '.join(set(words))}"
        for node, words in found.items()
        if set(words) != {"passed"}
    ]


def findings(rows: Rows) -> None:
    """One row a finding."""
    nodes = dict.fromkeys(node for finding in FINDINGS.values() for node in finding.nodes)
    outcomes, said = run_tests(list(nodes))
    if not outcomes:
        print(said)
    for number, finding in FINDINGS.items():
        faults = missing(finding, outcomes)
        passed = len(finding.tests) - len(faults) if finding.tests else 0
        told = f"before: {finding.before}" + (f"; now: {finding.now}" if not faults else f"; {faults}")
        rows.add(
            f"finding {number}: {finding.now}", passed, "tests", f"= {max(len(finding.tests), 1)}", not faults, told
        )
