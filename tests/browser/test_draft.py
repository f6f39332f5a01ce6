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
const { candidates, keys, draft } = JSON.parse(process.argv[1]);
const folds = folded(candidates, keys);
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
    ("verdicts", "read", "seen_upto", "sent"),
    [
        ({}, "", 6, "a:unseen b:unseen c:unseen d:unseen e:unseen f:unseen"),
        ({}, "ab", 6, "a:refuses b:refuses c:abstains d:unseen e:abstains f:unseen"),
        ({}, "abdf", 2, "a:refuses b:refuses c:abstains d:unseen e:abstains f:unseen"),
        ({"a": "explains"}, "", 6, "a:explains b:unseen c:unseen d:unseen e:abstains f:unseen"),
        ({"b": "refuses", "d": "refuses"}, "d", 2, "a:unseen b:unseen c:unseen d:refuses e:unseen f:unseen"),
        ({"b": "refuses", "c": "refuses"}, "b", 4, "a:unseen b:refuses c:abstains d:unseen e:unseen f:unseen"),
        ({"f": "abstains"}, "f", 6, "a:unseen b:unseen c:unseen d:unseen e:unseen f:abstains"),
    ],
)
def test_only_what_was_read_is_refused_and_nothing_that_is_folded(
    script: str, verdicts: dict[str, str], read: str, seen_upto: int, sent: str
) -> None:
    candidates = [
        {"premise_id": name, "text": name, "rank": rank, "score": 0} for rank, name in enumerate(KEYS, start=1)
    ]
    draft = {"verdicts": verdicts, "read": list(read), "seenUpto": seen_upto}
    asked = json.dumps({"candidates": candidates, "keys": [*KEYS.values()], "draft": draft})
    command = ["node", "--input-type=module", "--eval", script, asked]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert told["folds"] == [["a", "e"], ["b", "c"], ["d"], ["f"]]
    assert told["sent"] == dict(one.split(":") for one in sent.split())
