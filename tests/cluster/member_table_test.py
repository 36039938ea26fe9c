"""The table of members in one process, which stands for the server."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import member_table

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
NAMES = ("/job:worker/task:0", "/job:worker/task:1")


def writer(table):
    """What members write of themselves: `write(index, values)`."""

    @tf.function(autograph=False)
    def write(index, values):
        with tf.device(DEVICE):
            table.build_write(index, values)

    return write


@pytest.fixture
def now(monkeypatch):
    """The time on the server, a variable."""
    time = tf.Variable(1000.0, dtype=tf.float64)
    monkeypatch.setattr(member_table.tf, "timestamp", lambda: time.read_value())
    return time


def test_a_clock_that_is_set_makes_no_other_process():
    table = member_table.MemberTable(DEVICE, NAMES)
    table.create()
    write = writer(table)

    def put(age, life):
        values = np.zeros([member_table.WRITTEN])
        values[:4] = [member_table.MemberState.ALIVE, 2, age, life]
        write(1, values)
        with tf.device(DEVICE):
            entered = table.build_attendance(2)[1][1]
        return table.read()[1], float(entered)

    first, entered = put(age=100.0, life=7.0)
    assert (first.arrivals, first.state) == (2, member_table.MemberState.ALIVE)
    # As if the clock had gone on by more than the process has aged.
    assert put(age=40.0, life=7.0)[1] == entered
    other, entered_later = put(age=1.0, life=8.0)
    assert 90.0 < entered_later - entered
    assert (first.life, other.life) == (7.0, 8.0)
    assert table.read()[0].state == member_table.MemberState.UNKNOWN


def test_whose_process_has_failed_has_ended_as_well():
    states = [
        member_table.MemberState.ALIVE,
        member_table.MemberState.FINISHED,
        member_table.MemberState.FAILED,
        member_table.MemberState.LEFT,
    ]
    table = member_table.MemberTable(DEVICE, ("a", "b", "c", "d", "e"))
    table.create()
    write = writer(table)
    for index, state in enumerate(states):
        values = np.zeros([member_table.WRITTEN])
        values[:4] = [state, 2, 1.0, 7.0]
        write(index, values)
    with tf.device(DEVICE):
        _, _, ended, left = table.build_attendance(5)
    assert ended.numpy().tolist() == [False, True, True, True, False]
    assert left.numpy().tolist() == [False, False, False, True, False]


def test_time_in_which_a_server_did_not_listen_is_nobodys_silence(now):
    table = member_table.MemberTable(DEVICE, ("a", "b", "c"))
    table.create()
    write = writer(table)
    values = np.arange(1.0, 1.0 + member_table.WRITTEN)
    write(0, values)
    now.assign(1070.0)
    write(1, values)
    before = table.read()
    assert [m.silent_for for m in before] == [70.0, 0.0, float("inf")]
    table.excuse(60.0)
    after = table.read()
    assert [m.silent_for for m in after] == [10.0, 0.0, float("inf")]
    assert [(m.word, m.life) for m in after] == [
        (m.word, m.life) for m in before
    ]


def test_rows_of_before_a_server_died_count_where_nobody_was_heard_since(now):
    table = member_table.MemberTable(DEVICE, ("a", "b", "c", "d"))
    table.create()
    write = writer(table)

    @tf.function(autograph=False)
    def look():
        with tf.device(DEVICE):
            return table.build_rows()

    @tf.function(autograph=False, input_signature=table.put_back_signature())
    def put_back(index, rows, then):
        with tf.device(DEVICE):
            table.build_put_back(index, rows, then)

    def values(state, arrivals, life):
        made = np.zeros([member_table.WRITTEN])
        made[:4] = [state, arrivals, 5.0, life]
        return made

    states = member_table.MemberState
    write(0, values(states.ALIVE, 3, life=7.0))
    write(1, values(states.LEFT, 2, life=8.0))
    write(2, values(states.ALIVE, 3, life=9.0))
    now.assign(1004.0)
    kept = look()
    # The server is away for long, and the third member starts again as well.
    now.assign(2000.0)
    table.create()
    write(2, values(states.ALIVE, 0, life=10.0))
    now.assign(2001.0)
    for _ in range(2):
        put_back(0, *kept)
    assert [
        (m.state, m.arrivals, m.life, m.silent_for) for m in table.read()
    ] == [
        (states.ALIVE, 3, 7.0, 4.0),
        (states.LEFT, 2, 8.0, 4.0),
        (states.ALIVE, 0, 10.0, 1.0),
        (states.UNKNOWN, 0, 0.0, float("inf")),
    ]
    former, has_told = table.read_former()
    assert [m.life for m in former] == [7.0, 8.0, 9.0, 0.0]
    # Who is not there has nothing to tell.
    assert has_told == [True, False, False, True]
    with tf.device(DEVICE):
        _, entered, _, _ = table.build_attendance(2)
        assert table.build_enlisted(4, initial_workers=3) == 2.0
    # They came when they came.
    assert entered.numpy().tolist() == [995.0, 995.0]
    # What is heard of a member counts as ever.
    write(1, values(states.ALIVE, 0, life=11.0))
    put_back(1, *kept)
    assert table.read()[1].life == 11.0
    assert table.read_former()[1] == [True, True, False, True]
