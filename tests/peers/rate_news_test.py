"""The chief's learning rate among workers, without processes."""

import tensorflow as tf

from tfdist.peers import rate_news


class Worker:
    def __init__(self, is_chief=False):
        self.rate = tf.Variable(0.5)
        self.news = rate_news.RateNews(is_chief, self.rate)

    def hear(self, said, counts=True):
        self.news.build_hear(tf.constant(counts), *said)
        self.news.build_adopt()
        return float(self.rate.numpy())


def said_by(chief, rate):
    chief.news.build_step(tf.constant(rate, tf.float64))
    return chief.news.build_read()


def test_the_newest_rate_counts_however_it_came():
    chief, first, second = Worker(is_chief=True), Worker(), Worker()
    old = said_by(chief, 0.25)
    new = said_by(chief, 0.125)
    assert first.hear(new) == 0.125
    assert first.hear(old) == 0.125
    # From worker to worker.
    assert second.hear(first.news.build_read(), counts=False) == 0.5
    assert second.hear(first.news.build_read()) == 0.125


def test_another_process_of_the_chief_is_heard():
    chief, other = Worker(is_chief=True), Worker()
    for _ in range(50):
        last = said_by(chief, 0.25)
    assert other.hear(last) == 0.25
    # It has made one step.
    assert other.hear(said_by(Worker(is_chief=True), 0.0625)) == 0.0625


def test_a_chief_whose_clock_is_set_back_is_heard(monkeypatch):
    chief, other = Worker(is_chief=True), Worker()
    for seconds, rate in ((1000.0, 0.25), (940.0, 0.125), (940.0, 0.0625)):
        now = tf.constant(seconds, tf.float64)
        monkeypatch.setattr(rate_news.tf, "timestamp", lambda now=now: now)
        assert other.hear(said_by(chief, rate)) == rate


def test_another_process_of_the_chief_whose_clock_is_behind_is_heard(
    monkeypatch,
):
    chief, other = Worker(is_chief=True), Worker()
    assert other.hear(said_by(chief, 0.25)) == 0.25
    monkeypatch.setattr(rate_news.tf, "timestamp", lambda: tf.constant(9.0))
    started_again = Worker(is_chief=True)
    assert other.hear(said_by(started_again, 0.125)) == 0.25
    assert started_again.hear(other.news.build_read()) == 0.5
    assert other.hear(said_by(started_again, 0.0625)) == 0.0625


def test_the_chief_hears_no_rate_and_others_forget():
    chief, other = Worker(is_chief=True), Worker()
    said = said_by(chief, 0.25)
    assert chief.hear(said) == 0.5
    other.hear(said)
    other.news.forget()
    other.rate.assign(1.0)
    assert other.hear(said) == 0.25


def test_a_rate_is_adopted_once():
    chief, other = Worker(is_chief=True), Worker()
    said = said_by(chief, 0.25)
    assert other.hear(said) == 0.25
    other.rate.assign(1.0)
    assert other.hear(said) == 1.0
