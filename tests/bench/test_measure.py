"""The interval, the order of turns and the comparison of sides, against hand-made clocks and numbers."""

from __future__ import annotations

from math import comb

import pytest
from bench.measure import Clock, agree, alternate, median, moved, ratio


def test_ratio_is_taken_within_turns() -> None:
    # The machine slows down tenfold half-way; both sides feel it, and the ratio does not.
    a = Clock([2.0, 2.2, 20.0, 22.0], [1.0] * 4)
    b = Clock([1.0, 1.1, 10.0, 11.0], [0.5] * 4)
    found = ratio(a, b)
    assert (found.value, found.low, found.high, found.n, found.cpu) == pytest.approx((2, 2, 2, 4, 2))
    assert ratio(a, b, 0.25).value == pytest.approx(0.5)


def test_interval_is_the_bootstrap_of_the_median() -> None:
    values = [float(2**n) for n in range(9)]
    # The median of a resample is at most the k-th smallest value where five or more of its nine are.
    below = [sum(comb(9, j) * (k / 9) ** j * (1 - k / 9) ** (9 - j) for j in range(5, 10)) for k in range(1, 10)]
    low, high = (values[next(k for k in range(9) if below[k] >= share)] for share in (0.025, 0.975))
    found = median(values)
    assert (found.value, found.low, found.high) == (16.0, low, high)
    wide, narrow = median([1.0, 3.0] * 5), median([1.9, 2.1] * 5)
    assert wide.high - wide.low > narrow.high - narrow.low


def test_order_is_reversed_at_every_other_turn() -> None:
    seen: list[tuple[str, int]] = []
    sides = {name: lambda turn, name=name: seen.append((name, turn)) for name in "ab"}
    clocks = alternate(sides, [7, 8, 9])
    assert seen == [("a", 7), ("b", 7), ("b", 8), ("a", 8), ("a", 9), ("b", 9)]
    assert [len(clock.wall) for clock in clocks.values()] == [3, 3]


def test_out_of_time_still_takes_three_turns() -> None:
    clocks = alternate({"a": lambda turn: None}, range(10), seconds=0.0)
    assert len(clocks["a"].wall) == 3


@pytest.mark.parametrize("other", [[1.0, 2.2], [1.0, float("nan")], [1.0], [[1.0, 2.0]]])
def test_sides_that_differ_stop_the_run(other: object) -> None:
    with pytest.raises(SystemExit):
        agree({"ours": [1.0, 2.0], "near": [1.0, 2.05], "other": other}, 0.1)


def test_nothing_agrees_with_nothing() -> None:
    with pytest.raises(SystemExit):
        agree({"ours": [], "theirs": []}, 0.1)


def test_sides_that_agree_say_how_far() -> None:
    assert "largest difference 0.05" in agree({"ours": [1.0, 2.0], "near": [1.0, 2.05]}, 0.1)


def test_steering_that_does_nothing_stops_the_run() -> None:
    assert "0.5" in moved([1.0, 2.0], [1.0, 2.5], 0.1)
    for steered in ([1.0, 2.0], [1.0, float("nan")]):
        with pytest.raises(SystemExit):
            moved([1.0, 2.0], steered, 0.1)
