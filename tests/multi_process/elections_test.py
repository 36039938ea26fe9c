"""The bound of what elections may lose, by examples worked out by hand."""

import pytest

from tests.multi_process import elections


def note(pulled, held, restored=None, life="second", server=0):
    return {
        "server": server,
        "life": life,
        "pulled": pulled,
        "held": held,
        "restored": restored,
    }


def restored(before, after, offers, waited=0.1):
    return {
        "before": before,
        "after": after,
        "offers": offers,
        "waited": waited,
    }


def test_nothing_is_lost_where_the_newest_restores():
    notes = [[note(9, 9, restored(-1, 9, [9, 7]))], [note(7, 12)]]
    elections.check(notes)
    assert elections.most_lost(notes, server=0) == [0, 0]
    assert elections.most_lost(notes, server=1) == [0, 0]


def test_who_was_not_heard_loses_what_it_had_pulled_above_the_rest():
    notes = [[note(7, 7, restored(-1, 7, [7, -1], 2.1))], [note(9, 12)]]
    elections.check(notes)
    assert elections.most_lost(notes, server=0) == [0, 2]


def test_a_second_restoration_costs_what_came_after_the_first():
    first = restored(-1, 7, [7, -1], 2.1)
    second = restored(8, 9, [7, 9], 0.1)
    notes = [[note(7, 7, first)], [note(9, 9, second)]]
    elections.check(notes)
    # One update after the first; and two that the second worker had pulled.
    assert elections.most_lost(notes, server=0) == [1, 3]


def test_every_life_of_a_server_counts():
    late = [[note(7, 7, restored(-1, 7, [7, -1], 2.1))], [note(9, 12)]]
    again = [
        [*one, *(other | {"life": "third"} for other in one)] for one in late
    ]
    assert elections.most_lost(again, server=0) == [0, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        restored(-1, 7, [7, 9]),  # The other has more, and is given no time.
        restored(-1, 7, [7, -1]),  # Nor has it been heard.
        restored(7, 7, [7, 7]),  # It was there.
        restored(-1, 8, [7, 7]),  # It holds less than it restores.
    ],
)
def test_a_wrong_restoration_is_refused(wrong):
    with pytest.raises(AssertionError):
        elections.check([[note(7, 7, wrong)], []])
