"""A record that several change at the same time."""

import threading

import tensorflow as tf

from tfdist.cluster import shared_record


def make(name):
    device = tf.config.list_logical_devices("CPU")[0].name
    return shared_record.SharedRecord(name, device, device)


def test_it_is_empty_at_first_and_the_same_for_all_of_its_name():
    one, other = make("shared/a"), make("shared/a")
    assert one.read() == {}
    assert one.change(lambda record, now: record.update(x=[1, "a"])) is None
    assert other.read() == {"x": [1, "a"]}
    assert make("shared/b").read() == {}


def test_no_change_is_lost():
    """Each adds to what it has read; some have to try again."""
    calls = []

    def add(record, now):
        calls.append(now)
        record["sum"] = record.get("sum", 0) + 1
        return record["sum"]

    answers = []

    def work():
        one = make("shared/sum")
        for _ in range(20):
            answers.append(one.change(add))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(1, 61))
    assert make("shared/sum").read() == {"sum": 60}
    assert len(calls) >= 60


def test_who_has_read_an_old_version_tries_again():
    one, other = make("shared/old"), make("shared/old")
    seen = []

    def change(record, now):
        seen.append(dict(record))
        if len(seen) == 1:
            other.change(lambda record, now: record.update(a=1))
        record["b"] = 2

    one.change(change)
    assert seen == [{}, {"a": 1}]
    assert one.read() == {"a": 1, "b": 2}


def test_time_is_that_of_the_server():
    times = []
    one = make("shared/time")
    for _ in range(2):
        one.change(lambda record, now: times.append(now))
    assert times[0] <= times[1]
