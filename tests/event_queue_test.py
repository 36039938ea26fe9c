"""What happens in virtual time, in which order."""

from tfdist.event_queue import EventQueue


def noted(queue):
    """A list, and an event that notes when it happened to whom."""
    seen = []

    def event(name, then=()):
        seen.append((queue.now, name))
        for later, other in then:
            queue.at(queue.now + later, event, other)

    return seen, event


def test_time_goes_on_and_one_moment_keeps_the_order_of_notes():
    queue = EventQueue()
    seen, event = noted(queue)
    queue.at(2.0, event, "c")
    queue.at(1.0, event, "a", [(1.0, "e"), (0.0, "b"), (0.5, "between")])
    queue.at(2.0, event, "d")
    while queue.happen():
        assert seen[-1][0] == queue.now
    assert seen == [
        (1.0, "a"),
        (1.0, "b"),
        (1.5, "between"),
        (2.0, "c"),
        (2.0, "d"),
        (2.0, "e"),
    ]
    assert not queue.happen()


def test_a_moment_is_over_when_what_it_has_led_to_has_happened():
    queue = EventQueue()
    seen, event = noted(queue)
    queue.at(1.0, event, "a", [(0.0, "b"), (1.0, "c")])
    moments = queue.moments()
    assert next(moments) == 1.0
    assert [name for _, name in seen] == ["a", "b"]
    # What is noted between two of them happens in its time.
    queue.at(1.0, event, "d")
    assert list(moments) == [1.0, 2.0]
    assert [name for _, name in seen] == ["a", "b", "d", "c"]
