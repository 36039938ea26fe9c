import threading

import pytest

from tfdist.cluster.gate import Gate


def test_many_are_inside_at_once():
    gate, both = Gate(), threading.Barrier(2)
    done = []

    def enter():
        with gate.shared():
            both.wait(10.0)  # Breaks if the other one is kept out.
            done.append(gate.is_inside)

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert done == [True, True]
    assert not gate.is_inside


def test_who_is_alone_waits_for_the_others_and_keeps_them_out():
    gate, entered = Gate(), threading.Event()
    leave, order = threading.Event(), []

    def first():
        with gate.shared():
            entered.set()
            leave.wait(10.0)
            order.append("first")

    def last():
        with gate.shared():
            order.append("last")

    one = threading.Thread(target=first)
    one.start()
    entered.wait(10.0)
    threading.Timer(0.1, leave.set).start()
    with gate.alone(10.0):
        order.append("alone")
        two = threading.Thread(target=last)
        two.start()
        two.join(0.2)
        assert two.is_alive()
        # A call within needs no leave of anybody.
        with gate.shared():
            order.append("within")
    two.join(10.0)
    assert order == ["first", "alone", "within", "last"]


def test_the_wait_to_be_alone_is_bounded_and_undone():
    gate, entered, leave = Gate(), threading.Event(), threading.Event()

    def stay():
        with gate.shared():
            entered.set()
            leave.wait(10.0)

    thread = threading.Thread(target=stay)
    thread.start()
    entered.wait(10.0)
    with pytest.raises(TimeoutError, match="Gave up after 0.1 s waiting for"):
        with gate.alone(0.1):
            pass
    with gate.shared():  # Others are not kept out for ever.
        pass
    leave.set()
    thread.join(10.0)
    with gate.alone(1.0):
        pass
