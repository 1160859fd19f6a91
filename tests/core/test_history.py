"""A log is a value: whatever is appended to it, it reads as before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.history import Log


def log(*items: tuple[int, str | None]) -> Log[int]:
    """A log of items under keys."""
    made: Log[int] = Log()
    for item, key in items:
        made = made.append(item, key)
    return made


def test_items_are_found_by_place_by_key_and_in_order() -> None:
    made = log((1, "a"), (2, None), (3, "a"), (4, "b"))
    assert list(made) == [1, 2, 3, 4]
    assert (made[0], made[-1], made[1:3]) == (1, 4, (2, 3))
    assert (made.positions("a"), made.positions("b"), made.positions("c")) == ([0, 2], [3], [])
    assert (made.find("a"), made.find("c")) == (3, None)
    assert (made.has("a"), made.has("c"), made.has(None)) == (True, False, False)
    assert (len(made), len(Log())) == (4, 0)
    assert (2 in made, 9 in made) == (True, False)
    assert list(reversed(made)) == [4, 3, 2, 1]
    assert isinstance(made, Sequence)


@pytest.mark.parametrize("index", [3, -4])
def test_a_place_outside_the_log_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match="log of 3"):
        log((1, None), (2, None), (3, None))[index]


def test_two_versions_that_grow_from_one_do_not_see_each_other() -> None:
    old = log((1, "a"), (2, "b"))
    one, two = old.append(3, "a"), old.append(4, "c")
    assert (list(old), list(one), list(two)) == ([1, 2], [1, 2, 3], [1, 2, 4])
    assert (old.positions("a"), one.positions("a"), two.positions("a")) == ([0], [0, 2], [0])
    assert (one.has("c"), two.has("c"), old.has("c")) == (False, True, False)
    assert (old.find("a"), one.find("a")) == (1, 3)
    assert two.append(5, "a").positions("a") == [0, 3]


def test_an_old_version_does_not_see_keys_of_a_newer_one() -> None:
    old = log((1, None))
    old.append(2, "new").append(3, "new")
    assert (old.has("new"), old.positions("new"), old.find("new")) == (False, [], None)
    assert 2 not in old
    assert list(reversed(old)) == [1]


def test_equal_items_make_equal_logs_whatever_their_past() -> None:
    one = log((1, "a"), (2, None))
    longer = log((1, "a"))
    longer.append(9)
    other = longer.append(2)
    assert one == other
    assert hash(one) == hash(other)
    assert one != log((1, "a"))
    assert one != log((1, "a"), (3, None))
    assert one != [1, 2]
    assert repr(one) == "Log([1, 2])"


KEYED = st.tuples(st.integers(0, 9), st.none() | st.sampled_from("abc"))
GROWTH = st.lists(st.tuples(st.integers(0, 10), KEYED), max_size=25)


@given(GROWTH)
def test_every_version_reads_as_the_list_it_stands_for_after_all_others_grew(
    growth: list[tuple[int, tuple[int, str | None]]],
) -> None:
    versions: list[tuple[Log[int], list[tuple[int, str | None]]]] = [(Log(), [])]
    for base, (item, key) in growth:
        before, wanted = versions[base % len(versions)]
        versions.append((before.append(item, key), [*wanted, (item, key)]))
    for made, wanted in versions:
        assert list(made) == [item for item, _ in wanted]
        for key in "abc":
            places = [place for place, (_, under) in enumerate(wanted) if under == key]
            assert made.positions(key) == places
            assert made.has(key) is bool(places)
            assert made.find(key) == (wanted[places[-1]][0] if places else None)


def test_each_item_is_rendered_once_however_often_it_is_asked_for() -> None:
    seen: list[int] = []

    def render(item: int) -> str:
        seen.append(item)
        return f"<{item}>"

    made: Log[int] = Log()
    for item in range(400):
        made = made.append(item)
        assert made.rendered(render)[-1] == f"<{item}>"
    assert seen == list(range(400))
    assert made.rendered(str) == [str(item) for item in range(400)]


def test_an_old_version_and_a_branch_render_what_they_hold() -> None:
    old = log((1, None), (2, None))
    new = old.append(3)
    assert (new.rendered(str), old.rendered(str)) == (["1", "2", "3"], ["1", "2"])
    assert old.append(4).rendered(str) == ["1", "2", "4"]
    old.rendered(str).clear()  # what is given out is the caller's own
    assert old.rendered(str) == ["1", "2"]


def test_an_item_is_replaced_in_one_version_and_rendered_anew_there_alone() -> None:
    old = log((1, "a"), (2, "b"), (3, None))
    assert old.rendered(str) == ["1", "2", "3"]
    old.append(9, "b")
    new = old.replaced(1, 7)
    assert (list(old), list(new)) == ([1, 2, 3], [1, 7, 3])
    assert (new.find("b"), new.positions("b"), new.find("a")) == (7, [1], 1)
    assert (old.rendered(str), new.rendered(str)) == (["1", "2", "3"], ["1", "7", "3"])
    assert new.append(4).rendered(str) == ["1", "7", "3", "4"]


def test_what_was_not_rendered_before_a_replacement_is_rendered_after_it() -> None:
    old = log((1, None))
    old.rendered(str)
    assert old.append(2).replaced(1, 8).rendered(str) == ["1", "8"]
