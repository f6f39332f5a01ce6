"""The queue alone: windows, budgets, lanes, turns and dropped texts."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace

import pytest

from services.encoder.batching.queues import BULK_TURN, LATELY_S, WINDOW_BATCHES, Item, Queues
from services.encoder.runtime.runners import PairRunner, Tokens


class Runner:
    width = 1

    def __init__(self, pads: bool = True) -> None:
        self.pads = pads


def a_call(caller="", queued=0.0, is_alone=False):
    return SimpleNamespace(dead=False, caller=caller, queued=queued, is_alone=is_alone)


def items(lengths, call=None, deadline=math.inf):
    call = call or a_call()
    return [Item(Tokens([1] * n), row, n, call, deadline) for row, n in enumerate(lengths)]


def queues(**fields) -> Queues:
    return Queues(**{"batch_items": 4, "batch_tokens": 1000, "workers": 1, **fields})


def drain(waiting: Queues, now: float = 0.0):
    batches = []
    while (taken := waiting.take(now)) is not None:
        batches.append(taken)
    return batches


def test_a_batch_holds_texts_of_like_length_and_never_more_than_its_budget_with_padding():
    waiting, runner = queues(batch_items=8, batch_tokens=40), Runner()
    waiting.put("interactive", runner, items([9, 1, 30, 2, 10, 3, 39, 1]))
    batches = [[item.length for item in batch] for _, batch in drain(waiting)]
    assert sorted(length for batch in batches for length in batch) == [1, 1, 2, 3, 9, 10, 30, 39]
    assert batches[0] == [1, 1, 2, 3]
    for batch in batches:
        assert len(batch) * max(batch) <= 40
        assert batch == sorted(batch)


GPU = {"batch_items": 0, "batch_tokens": 16_384}


@pytest.mark.parametrize(
    ("fields", "runner", "lengths", "sizes"),
    [
        ({"batch_tokens": 10}, Runner(), [50, 3], [1, 1]),  # a text over the budget is a batch of its own
        ({"batch_items": 8, "batch_tokens": 40}, Runner(pads=True), [1, 1, 1, 30], [3, 1]),
        ({"batch_items": 8, "batch_tokens": 40}, Runner(pads=False), [1, 1, 1, 30], [4]),  # charged what it computes
        ({"batch_items": 32, "workers": 2}, Runner(), [3] * 20, [10, 10]),  # workers share a small load
        ({**GPU, "workers": 16}, Runner(), [12] * 1024, [1024]),  # tokens alone bound a batch of a GPU
        ({**GPU, "workers": 16}, Runner(), [12] * 3000, [1365, 1365, 270]),
        ({**GPU, "of_pairs": (32, 256)}, Runner(), [16] * 40, [40]),
        ({**GPU, "of_pairs": (32, 256)}, PairRunner(None, pad_id=0, segmented=False), [16] * 40, [16, 16, 8]),
    ],
)
def test_a_window_is_cut_by_texts_tokens_and_workers(fields, runner, lengths, sizes):
    waiting = queues(**fields)
    waiting.put("interactive", runner, items(lengths))
    assert [len(batch) for _, batch in drain(waiting)] == sizes


def test_what_came_first_is_done_within_its_window_however_odd_its_length():
    waiting, runner = queues(batch_items=2), Runner()
    first = items([500])
    waiting.put("interactive", runner, first)
    handed_out = 0
    for _ in range(100):  # short texts keep coming
        waiting.put("interactive", runner, items([3, 3]))
        _, batch = waiting.take(0.0)
        handed_out += 1
        if first[0] in batch:
            break
    assert handed_out <= WINDOW_BATCHES


def test_versions_never_share_a_batch_and_take_turns():
    waiting, one, other = queues(), Runner(), Runner()
    waiting.put("interactive", one, items([3] * 12))
    waiting.put("interactive", other, items([3] * 12))
    runners = [runner for runner, batch in drain(waiting)]
    assert runners == [one, other] * 3


def test_bulk_gets_one_batch_in_eight_while_people_wait_and_all_when_nobody_does():
    waiting, people, bulk = queues(), Runner(), Runner()
    waiting.put("bulk", bulk, items([3] * 40))
    waiting.put("interactive", people, items([3] * 4 * 14))
    order = [runner is bulk for runner, _ in drain(waiting)]
    assert order[: 2 * BULK_TURN] == ([False] * (BULK_TURN - 1) + [True]) * 2
    assert all(order[2 * BULK_TURN :])


def test_what_is_cancelled_or_out_of_time_is_dropped_even_after_its_window_was_cut():
    waiting, runner = queues(batch_items=2), Runner()
    gone, late, fine = a_call(), a_call(), a_call()
    waiting.put("interactive", runner, items([3], fine))
    waiting.put("interactive", runner, [*items([4, 4], fine), *items([5], gone), *items([6], late, deadline=10.0)])
    assert waiting.take(0.0) is not None  # the window is cut now
    gone.dead = True
    rest = [item for _, batch in drain(waiting, now=20.0) for item in batch]
    assert {item.call is fine for item in rest} == {True}
    dropped = {item.length: expired for item, expired in waiting.dropped()}
    assert dropped == {5: False, 6: True}
    assert waiting.dropped() == []


def test_a_window_without_a_limit_of_texts_is_bounded_by_tokens():
    waiting = queues(batch_items=0, batch_tokens=100)
    waiting.put("bulk", Runner(), items([10] * 500))
    _, first = waiting.take(0.0) or (None, [])
    [queue] = waiting._lanes["bulk"].values()
    assert (len(first), len(queue.waiting)) == (10, 500 - WINDOW_BATCHES * 10)


def callers_of(batches):
    return [[item.call.caller for item in batch] for _, batch in batches]


def test_somebody_with_nothing_in_the_queue_goes_next_however_much_others_have_there():
    waiting, runner = queues(), Runner()
    for caller in "abc":
        waiting.put("interactive", runner, items([10] * 200, a_call(caller)))
    for _ in range(3):
        assert waiting.take(0.0) is not None
    waiting.put("interactive", runner, items([10], a_call("d", is_alone=True)))
    waiting.put("interactive", runner, items([10], a_call("e", is_alone=True)))
    [first] = callers_of([waiting.take(0.0)])
    assert first[:2] == ["d", "e"], "in one batch"


def test_callers_share_a_queue_by_tokens_whatever_the_length_of_their_texts_and_calls():
    waiting, runner = queues(batch_items=1), Runner()
    waiting.put("interactive", runner, items([40] * 50, a_call("long")))
    for _ in range(200):
        waiting.put("interactive", runner, items([10], a_call("short")))
    served = Counter()
    for _ in range(WINDOW_BATCHES * 10):
        _, [item] = waiting.take(0.0)
        served[item.call.caller] += item.length
    assert abs(served["long"] - served["short"]) <= 80


def test_a_small_call_of_the_same_caller_waits_for_no_more_than_a_batch_of_a_large_one():
    waiting, runner = queues(batch_items=0, batch_tokens=100), Runner()
    large, small = a_call("index"), a_call("index")
    waiting.put("interactive", runner, items([10] * 500, large))
    waiting.put("interactive", runner, items([10], small))
    window = [batch for _, batch in (waiting.take(0.0) for _ in range(WINDOW_BATCHES))]
    assert any(item.call is small for batch in window for item in batch)


def test_who_comes_again_and_again_with_one_text_does_not_starve_a_large_call():
    waiting, runner = queues(batch_items=1), Runner()
    waiting.put("interactive", runner, items([10] * 20, a_call("large")))
    served = Counter()
    while served["large"] < 20:
        waiting.put("interactive", runner, items([10], a_call("small")))
        _, [item] = waiting.take(0.0)
        served[item.call.caller] += 1
    assert served["small"] <= 40


def test_who_takes_less_than_their_share_goes_before_any_number_of_callers_with_more():
    waiting, runner = queues(batch_items=1), Runner()
    for caller in "abcdefghij":
        waiting.put("interactive", runner, items([40] * 100, a_call(caller)))
    for _ in range(50):  # until their credit is used up
        assert waiting.take(0.0) is not None
    for _ in range(20):
        waiting.put("interactive", runner, items([8], a_call("light", is_alone=True)))
        assert callers_of([waiting.take(0.0)]) == [["light"]]
        for _ in range(10):
            waiting.put("interactive", runner, items([40], a_call("a")))
            assert "light" not in callers_of([waiting.take(0.0)])[0]


def test_a_text_of_a_service_does_not_wait_for_the_service_s_large_calls():
    waiting, runner = queues(batch_items=1), Runner()
    for caller in "abcd":
        waiting.put("interactive", runner, items([40] * 50, a_call(caller)))
    for _ in range(4):
        waiting.put("interactive", runner, items([40] * 16, a_call("index")))
    for _ in range(WINDOW_BATCHES + 1):
        assert waiting.take(0.0) is not None
    waiting.put("interactive", runner, items([8], a_call("index", is_alone=True)))
    _, [first] = waiting.take(0.0)
    assert first.length == 8


def test_on_a_cpu_a_batch_is_smallest_for_who_goes_ahead():
    waiting, runner = queues(batch_items=32, batch_tokens=240), Runner()
    waiting.put("interactive", runner, items([40] * 64, a_call("large")))
    assert sum(item.length for item in waiting.take(0.0)[1]) == 240
    waiting.put("interactive", runner, items([8], a_call("short", is_alone=True)))
    waiting.put("interactive", runner, items([40], a_call("long", is_alone=True)))
    assert callers_of([waiting.take(0.0)]) == [["short"]], "a longer text would hold it up"


def test_batches_are_whole_and_in_the_order_of_windows_while_nobody_asks_for_one_text_at_a_time():
    waiting, runner = queues(batch_items=32, batch_tokens=240), Runner()
    for caller in "abcd":
        waiting.put("interactive", runner, items([40] * 64, a_call(caller)))
    assert len(waiting.take(0.0)[1]) == 6
    waiting.put("interactive", runner, items([40] * 2, a_call("small", is_alone=True)))
    waiting.put("interactive", runner, items([40], a_call("flood")))
    waiting.put("bulk", runner, items([40], a_call("stream", is_alone=True)))
    window = [waiting.take(0.0)[1] for _ in range(WINDOW_BATCHES)]
    assert [[item.call.caller for item in batch] for batch in window if len(batch) < 6] == [["stream"]]
    assert not {"small", "flood"} & {item.call.caller for batch in window for item in batch}


def test_batches_of_a_cpu_are_smaller_for_a_while_after_somebody_asked_for_one_text_alone():
    waiting, runner = queues(batch_items=32, batch_tokens=240), Runner()
    for caller in "abcd":
        waiting.put("interactive", runner, items([40] * 64, a_call(caller)))

    def largest(now: float) -> int:
        """Of as many batches as a window has."""
        return max(sum(item.length for item in waiting.take(now)[1]) for _ in range(WINDOW_BATCHES))

    assert largest(10.0) == 240, "callers of equal load hold nobody up"
    waiting.put("interactive", runner, items([8], a_call("patient", queued=10.0, is_alone=True)))
    assert largest(10.0) == 120
    assert largest(10.0 + LATELY_S - 0.1) == 120, "it may come again"
    assert largest(10.0 + LATELY_S) == 240
