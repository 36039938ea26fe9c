import hypothesis
from hypothesis import strategies as st

from tfdist.cli import line_assembler
from tfdist.cli.line_assembler import LineAssembler


def assemble(*chunks, clock=lambda: 0.0):
    assembler = LineAssembler(clock)
    found = []
    for chunk in chunks:
        found += assembler.feed(chunk)
    return found + assembler.close()


def test_lines_are_whole():
    assert assemble(b"a", b"b\nc", b"\n\nd") == [b"ab", b"c", b"", b"d"]
    assert assemble(b"a\r\nb\r", b"\nc") == [b"a", b"b", b"c"]
    assert assemble(b"\xff\xfe\n\x00") == [b"\xff\xfe", b"\x00"]
    assert assemble() == assemble(b"") == []


@hypothesis.given(
    text=st.lists(st.sampled_from([b"a", "é".encode(), b"\r", b"\x08", b"\n"])),
    cuts=st.lists(st.integers(0, 60)),
)
def test_where_chunks_are_cut_changes_nothing(text, cuts):
    data = b"".join(text)
    cuts = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    chunks = [data[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    assert assemble(*chunks) == assemble(data)


def test_a_redrawn_line_shows_its_last_state():
    # As Keras: backspaces and a carriage return, then the new state, with
    # spaces over what was longer.
    bar = b"1/3 1s" + b"\x08" * 6 + b"\r2/3 1s" + b"\x08" * 6 + b"\r3/3   \n"
    assert assemble(b"Epoch 1\n\r" + bar) == [b"Epoch 1", b"3/3"]
    # As tqdm.
    assert assemble(b"\r 0%\r 50%", b"\r100%\n") == [b"100%"]
    # What ends in the middle of a redraw is not lost.
    assert assemble(b"1/3\r2/3\r") == [b"2/3"]
    assert assemble(b"1/3\r\nnext\n") == [b"1/3", b"next"]


def test_redrawn_lines_are_told_from_others():
    found = assemble(b"one\n1/2\r2/2\nthree\n40%\r50%\r")
    assert [isinstance(line, line_assembler.Redrawn) for line in found] == [
        False,
        True,
        False,
        True,
    ]


def test_a_long_progress_bar_shows_now_and_then():
    times = iter(range(100))  # One second for each redraw.
    bar = b"".join(b"%d/13\r" % step for step in range(14)) + b"\n"
    found = assemble(bar + b"\n", clock=lambda: next(times))
    # The last carriage return belongs to the newline.
    assert found == [b"5/13", b"10/13", b"13/13", b""]
    assert line_assembler.REDRAW_SECONDS == 5


def test_backspaces_delete_characters():
    assert assemble("spin é\x08/\x08-\n".encode()) == [b"spin -"]
    assert assemble(b"ab\x08\x08\x08\x08c\n") == [b"c"]


def test_an_endless_line_comes_in_parts():
    size = line_assembler.MAX_LINE_BYTES
    found = assemble(*[b"x" * 4096] * (2 * size // 4096), b"y\n")
    assert [len(line) for line in found] == [size, size, 1]
    assert b"".join(found) == b"x" * 2 * size + b"y"


def test_escapes_are_taken_out():
    line = b"\x1b[1m1/2\x1b[0m \x1b[38;5;2mok\x1b[K"
    assert line_assembler.without_escapes(line) == b"1/2 ok"
