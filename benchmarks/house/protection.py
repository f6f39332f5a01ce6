"""Do the tests notice broken code? Breaks thirty rules, one at a time, in a copy. `make bench NAME=protection`.

Each break replaces one piece of code. A named test must fail with the break, and pass without it. If the code to
replace has moved, its row fails until somebody updates the break. Ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.rows import ROOT, Rows

EXIT_FAILED = 1  # of pytest: tests ran, and some failed


@dataclass(frozen=True)
class Break:
    """A rule, the code that keeps it, what replaces that code, and the test that must notice."""

    rule: str
    path: str
    code: str
    broken: str
    test: str


INDEX, SAMPLER, TRAINER, ENCODER = "services/index", "services/sampler", "services/trainer", "services/encoder"
EXACT = f"{INDEX}/dense/exact.py"
EXACT_TEST = "index/dense/test_exact.py::test_concurrent_mixed_batches_equal_a_float64_brute_force_to_the_bit"
ALGORITHM = f"{SAMPLER}/acs/algorithm.py"
ALGORITHM_TEST = "sampler/acs/test_algorithm.py::test_a_run_records_exactly_the_pairs_of_algorithm_2"
ANSWERS = f"{SAMPLER}/oracles/answers.py"
ANSWERS_TEST = "sampler/oracles/test_answers.py::test_a_refusal_is_read_only_from_a_single_clear_refusal"
STEPS = f"{SAMPLER}/people/steps.py"
ARTIFACTS = "services/store/artifacts.py"
FORGED_TEST = "store/test_artifacts.py::test_a_forged_manifest_is_refused"
INTERCEPTORS = "services/kit/calls/interceptors.py"
ADMISSION = f"{ENCODER}/batching/admission.py"
ADMISSION_TEST = "encoder/batching/test_admission.py"
LOSSES = f"{TRAINER}/learning/loss/losses.py"
LOSSES_TEST = "trainer/learning/loss/test_losses.py"

BREAKS = (
    Break(
        "a search goes on until all is certain", EXACT, "pending = pending[~final]", "pending = pending[:0]", EXACT_TEST
    ),
    Break(
        "equal scores are ordered by premise",
        EXACT,
        "np.lexsort((candidates, -scores), axis=1)",
        "np.lexsort((-candidates, -scores), axis=1)",
        EXACT_TEST,
    ),
    Break(
        "approximate results are ordered as exact ones",
        f"{INDEX}/values.py",
        "order = np.lexsort((ordinals, -rounded))[:k]",
        "order = np.argsort(-rounded)[:k][::-1]",
        "index/dense/test_approximate.py::test_scores_and_their_order_are_those_of_an_exact_search",
    ),
    Break(
        "a full queue refuses",
        f"{INDEX}/values.py",
        "if self.size and is_over and not always:",
        "if False:",
        "index/dense/test_exact.py::test_a_full_queue_refuses_with_the_time_to_come_back",
    ),
    Break(
        "an id stands once in a build",
        f"{INDEX}/building/folding.py",
        "if one in self._ids:",
        "if False:",
        "index/building/test_build.py::test_bad_builds_are_refused_by_name_and_leave_nothing_behind",
    ),
    Break(
        "a leaf is not expanded",
        ALGORITHM,
        "if premise.leaf or premise.text in visited",
        "if premise.text in visited",
        ALGORITHM_TEST,
    ),
    Break(
        "a text is visited once",
        ALGORITHM,
        "premise.text in visited or",
        "False or",
        "sampler/acs/test_tree.py::test_a_text_is_a_node_once_below_the_first_parent_that_accepts_it",
    ),
    Break(
        "a run ends at its depth",
        ALGORITHM,
        "if parent.depth < rules.max_depth else ()",
        "if parent.depth <= rules.max_depth else ()",
        "sampler/acs/test_algorithm.py::test_nodes_below_the_depth_limit_are_not_expanded",
    ),
    Break(
        "ancestors are no candidates",
        ALGORITHM,
        "return [candidate for candidate in nearest if candidate.text not in excluded]",
        "return list(nearest)",
        ALGORITHM_TEST,
    ),
    Break(
        "positives only: no negative",
        ALGORITHM,
        "if not rules.positives_only:",
        "if True:",
        "sampler/acs/test_algorithm.py::test_positives_only_records_no_negative",
    ),
    Break(
        "only a refusal refuses",
        ANSWERS,
        "if verdict.judgement == Judgement.DOES_NOT_EXPLAIN:",
        "if True:",
        ANSWERS_TEST,
    ),
    Break(
        "two verdicts on a premise are none",
        ANSWERS,
        "elif premise_id in states:",
        "elif False:",
        "sampler/oracles/test_unreliable_oracles.py::test_a_premise_judged_twice_becomes_no_pair",
    ),
    Break("two states of a premise are none", ANSWERS, "if len(given) == 1 and", "if given and", ANSWERS_TEST),
    Break(
        "an oracle of nonsense fails the run",
        f"{SAMPLER}/oracles/breaker.py",
        "if failing_s >= patience_s and not self._probing:",
        "if False:",
        "sampler/oracles/test_answers.py::test_an_oracle_that_sends_nonsense_fails_the_run_with_a_remedy",
    ),
    Break(
        "an answer that is sent twice counts once",
        STEPS,
        "if seq and held.client_seq == seq:",
        "if False:",
        "sampler/people/test_people_clients.py::test_thirty_two_people_lose_nothing_and_hold_nothing_twice",
    ),
    Break(
        "pairs follow an amended answer",
        STEPS,
        "if record.settled or record.final or adjudicated or answer.own:",
        "if False:",
        "sampler/people/test_queue.py::test_a_settled_answer_is_amended_and_its_pairs_are_replaced",
    ),
    Break(
        "only the holder of a lease writes",
        "services/store/life_cycles.py",
        "if holder ~= ARGV[1] and (holder or needs_lease) then return 'LOST' end",
        "",
        "sampler/records/test_records.py::test_only_the_holder_of_the_lease_writes_and_only_while_the_run_is_live",
    ),
    Break("an artifact is what its id says", ARTIFACTS, "if artifact.id != artifact_id:", "if False:", FORGED_TEST),
    Break(
        "no file outside the artifact",
        ARTIFACTS,
        'if "/" in name or name in {"", ".", ".."}:',
        "if False:",
        FORGED_TEST,
    ),
    Break(
        "a manifest is the registered one",
        ARTIFACTS,
        "if expected_sha256 and digest != expected_sha256:",
        "if False:",
        "store/test_artifacts.py::test_a_manifest_other_than_the_registered_one_is_refused",
    ),
    Break(
        "an admin call needs the admin token",
        "services/kit/credentials/gate.py",
        "needed = (self._admin_token or self._token) if is_admin else self._token",
        "needed = self._token",
        "kit/test_server.py::test_an_admin_service_refuses_the_common_token",
    ),
    Break(
        "a service that is not ready refuses",
        INTERCEPTORS,
        "if not self._readiness.answers and not call.method.always_answers:",
        "if False:",
        "kit/test_server.py::test_health_says_not_serving_until_the_service_is_ready_and_calls_are_refused_with_the_"
        "reason",
    ),
    Break(
        "k has limits",
        "services/kit/limits.py",
        "if not 1 <= k <= limits.k:",
        "if False:",
        "kit/test_limits.py::test_a_k_outside_its_range_is_refused_with_the_range",
    ),
    Break(
        "a full lane refuses the whole call",
        ADMISSION,
        "if self._has_room(hold, more) and not must_line_up:",
        "if True:",
        f"{ADMISSION_TEST}::test_a_full_lane_refuses_the_whole_call_with_a_delay_and_leaves_the_other_lane_open",
    ),
    Break(
        "a deadline that cannot be met is refused",
        ADMISSION,
        "if queue_s + alone_s > left_s:",
        "if False:",
        f"{ADMISSION_TEST}::test_a_deadline_that_the_queue_cannot_meet_is_refused_before_any_work",
    ),
    Break(
        "a model goes when its last call has ended",
        f"{ENCODER}/rollout/versions.py",
        "if not self.in_flight[model]",
        "if self.in_flight[model]",
        "encoder/rollout/test_labels.py::test_a_dropped_model_is_really_gone",
    ),
    Break(
        "in-batch negatives, not only one's own",
        LOSSES,
        "masked_fill(masked & ~own, NOTHING)",
        "masked_fill(~own, NOTHING)",
        f"{LOSSES_TEST}::test_multiple_negatives_ranking_is_the_plain_formula",
    ),
    Break(
        "the margin is between the right two",
        LOSSES,
        "torch.clamp(negative - positive + self.margin, min=0)",
        "torch.clamp(positive - negative + self.margin, min=0)",
        f"{LOSSES_TEST}",
    ),
    Break(
        "a worse checkpoint needs force",
        f"{TRAINER}/registry/quality_gate.py",
        'if made.outcome == "WORSE":',
        "if False:",
        "trainer/registry/test_quality_gate.py::test_a_measurably_worse_checkpoint_needs_force",
    ),
    Break(
        "nothing of dev or test is learnt from",
        f"{TRAINER}/data/training_set.py",
        "is_held_out or ",
        "",
        "trainer/data/test_pair_sources.py::test_the_sample_leaks_nothing_of_dev_or_test_into_training",
    ),
)


def main() -> None:
    """Prints a row for the sound code and one for each break."""
    rows = Rows("protection")
    with _copy() as copy:
        sound = _run(copy, sorted({one.test for one in BREAKS}))
        rows.add("without a break: exit status of the tests", sound, "", "= 0", sound == 0)
        caught = [_is_caught(rows, copy, one) for one in BREAKS]
    rows.at_least("breaks that a test notices", sum(caught), "", len(BREAKS))
    rows.finish()


def _is_caught(rows: Rows, copy: Path, one: Break) -> bool:
    file = copy / one.path
    sound = file.read_text()
    if sound.count(one.code) != 1:
        rows.add(one.rule, sound.count(one.code), "places", "= 1", ok=False, baseline=f"{one.path}: {one.code}")
        return False
    file.write_text(sound.replace(one.code, one.broken))
    status = _run(copy, [one.test])
    file.write_text(sound)
    rows.add(one.rule, "fails" if status == EXIT_FAILED else f"exit {status}", "", "fails", status == EXIT_FAILED)
    return status == EXIT_FAILED


@contextmanager
def _copy() -> Iterator[Path]:
    """A copy of the files that git knows, as they are now."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True, text=True)
    with tempfile.TemporaryDirectory(prefix="aeenc-protection-") as directory:
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (Path(directory) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(directory) / name).write_bytes((ROOT / name).read_bytes())
        yield Path(directory)


def _run(copy: Path, tests: Sequence[str]) -> int:
    """Runs tests of the copy, on its code; returns pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(f"tests/{one}" for one in tests)]
    environment = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'clients/python'}", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False
    )
    return ended.returncode


if __name__ == "__main__":
    main()
