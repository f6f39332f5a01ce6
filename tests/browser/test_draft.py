"""What the page sends of candidates that it folds: nothing that nobody has seen is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
PAGE = Path(__file__).parents[2] / "clients" / "workbench" / "page"
RUN = """
import { folded, sentVerdicts } from %s;
const { candidates, draft } = JSON.parse(process.argv[1]);
const folds = folded(candidates);
console.log(JSON.stringify({ folds: folds.map(({ head, others }) => [head, ...others].map((one) => one.premise_id)),
  sent: sentVerdicts(draft, folds) }));
"""
KEYS = {"a": "heat", "b": "above 5", "c": "above 5", "d": "below 5", "e": "heat", "f": ""}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = tmp_path_factory.mktemp("draft") / "draft.mjs"
    command = [PAGE / "node_modules/.bin/esbuild", "src/draft.ts", "--bundle", "--format=esm", f"--outfile={built}"]
    subprocess.run(command, cwd=PAGE, check=True, capture_output=True)
    return RUN % json.dumps(built.as_uri())


@pytest.mark.parametrize(
    ("verdicts", "seen_upto", "sent"),
    [
        ({}, 2, {}),
        ({"b": "refuses"}, 2, {"b": "refuses"}),
        ({"b": "refuses"}, 6, {"b": "refuses", "c": "abstains", "e": "abstains"}),
        ({"a": "explains"}, 5, {"a": "explains", "c": "abstains", "e": "abstains"}),
        ({}, 6, {"c": "abstains", "e": "abstains"}),
        ({"b": "refuses", "c": "refuses"}, 4, {"b": "refuses", "c": "refuses"}),
    ],
)
def test_a_folded_candidate_is_abstained_from_above_the_line_and_unsaid_below_it(
    script: str, verdicts: dict[str, str], seen_upto: int, sent: dict[str, str]
) -> None:
    candidates = [
        {"premise_id": name, "text": name, "rank": rank, "score": 0, "same_key": key}
        for rank, (name, key) in enumerate(KEYS.items(), start=1)
    ]
    asked = json.dumps({"candidates": candidates, "draft": {"verdicts": verdicts, "seenUpto": seen_upto}})
    command = ["node", "--input-type=module", "--eval", script, asked]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert told == {"folds": [["a", "e"], ["b", "c"], ["d"], ["f"]], "sent": sent}
