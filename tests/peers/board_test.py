"""Texts that workers leave for others, in a session of this process."""

import tensorflow as tf

from tfdist.peers import board


def test_a_long_text_is_read_in_parts(monkeypatch):
    """TensorFlow's messages have a limit, of which an answer must stay below.

    What is read ends where a part is not full.
    """
    monkeypatch.setattr(board, "_PART_BYTES", 4)
    reader = board.BoardReader("", "localhost", 0)
    parts = []

    def run(session, fetch, deadline):
        parts.append(session.run(fetch))
        return parts[-1]

    with tf.compat.v1.Session(graph=reader._graph) as session:
        monkeypatch.setattr(
            board.sessions, "open_session", lambda *place: session
        )
        monkeypatch.setattr(board.sessions, "run", run)
        for text in (b"", b"abc", b"abcd", b"abcdefghij"):
            with reader._scope():
                write = tf.raw_ops.AssignVariableOp(
                    resource=board._handle("text"), value=text
                )
            session.run(write)
            assert reader.read("text") == text
    assert parts == [b"", b"abc", b"abcd", b"", b"abcd", b"efgh", b"ij"]
