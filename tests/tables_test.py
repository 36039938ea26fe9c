"""Tables as people read them."""

import math

from tfdist import tables


def test_columns_stand_below_each_other():
    text = tables.aligned(["name", "n", "ms"], [["a", "10", "1.5"], ["bc"] * 3])
    assert text.splitlines() == [
        "name   n   ms",
        "----  --  ---",
        "a     10  1.5",
        "bc    bc   bc",
    ]


def test_a_table_may_be_flush_left_narrow_and_without_a_rule():
    text = tables.aligned(["a", "bb"], [["ccc", "d"]], 2, gap=1, ruled=False)
    assert text.splitlines() == ["a   bb", "ccc d"]


def test_what_is_not_known_is_a_dash():
    for value in (None, math.nan, math.inf):
        assert tables.number(value) == tables.amount(value) == "-"
    assert tables.number(1 / 3, 2) == "0.33"


def test_amounts_have_three_digits():
    amounts = map(tables.amount, (0, 0.012345, 1.2345, 123.45, 12345.6))
    assert list(amounts) == ["0", "0.0123", "1.23", "123", "12346"]
    assert tables.percent(0.1234) == "12.3 %"
