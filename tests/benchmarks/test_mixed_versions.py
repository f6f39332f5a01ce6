"""The pairings of two releases: each part meets each other one in both directions."""

from __future__ import annotations

from itertools import pairwise, permutations

from benchmarks.promises.releases.pairings import PARTS, pairings, upgrade


def test_each_part_meets_each_other_part_of_the_other_release_in_both_directions():
    met = {
        (one, other)
        for pairing in pairings()
        for one, other in permutations(PARTS, 2)
        if pairing.release_of(one) == "earlier" and pairing.release_of(other) == "today"
    }
    assert met == set(permutations(PARTS, 2))


def test_an_upgrade_moves_one_part_at_a_time_and_ends_with_none_of_the_earlier_release():
    left = [pairing.earlier for _, pairing in upgrade()]
    assert [len(one) for one in left] == [4, 3, 2, 1, 0]
    assert all(later < before for before, later in pairwise(left))
