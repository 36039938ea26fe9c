"""The level of a line of a log, and what C++ libraries say about themselves."""

import enum
import re


class Level(enum.IntEnum):
    """Level of a line of a log."""

    INFO = 0
    WARNING = 1
    ERROR = 2


_LEVELS = {
    b"D": Level.INFO,
    b"I": Level.INFO,
    b"W": Level.WARNING,
    b"E": Level.ERROR,
    b"F": Level.ERROR,
    b"C": Level.ERROR,
}
_NAME = rb"(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b"
_PATTERNS = (
    # absl: "W1122 19:20:32.123456 77 train.py:12] ..."; TensorFlow's C++ before
    # absl is initialized: "I0000 00:00:1795375278.952118 77 port.cc:153] ...".
    re.compile(rb"([IWEF])\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+:\d+\] "),
    # Older TensorFlow: "2026-11-22 19:20:32.123: W tensorflow/a.cc:12] ...".
    re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWEF]) \S+:\d+\] "),
    # Python's default format, "WARNING:absl:..."; also "[INFO] ...".
    re.compile(rb"\[?" + _NAME + rb"[]: ]"),
    # Own formats that begin with the time.
    re.compile(rb"\W?\d{4}-\d\d-\d\d.{,60}?\b" + _NAME),
)
# What C++ libraries say of themselves, and TensorFlow Datasets of what it does.
_IDLE = re.compile(
    rb"[^]]* \S+\.(cc|cpp|h|cu):\d+\] "
    rb"|[^]]*\] (Load(ing)? dataset info|Creating a tf\.data\.Dataset reading"
    rb"|Constructing tf\.data\.Dataset|Reusing dataset|Generating dataset)"
)
_CHATTER = re.compile(
    rb"All log messages before absl::InitializeLog\(\) is called"
    # There is no driver, hence no GPU: nothing that anybody could mend.
    rb"|failed call to cuInit: .*UNKNOWN ERROR \(303\)"
    rb"|Unable to register cu\w+ factory"
    rb"|computation placer already registered"
    rb"|TF-TRT Warning: Could not find TensorRT"
    # TensorFlow Datasets, of what it is about to make.
    rb"|Variant folder .* has no dataset_info\.json"
    # The launcher says it once, for all tasks (`isolation.py`).
    rb"|serves on port \d+ of every network interface, without"
)
# Bars of TensorFlow Datasets that have just begun, and what erases them.
_NEW_BAR = re.compile(rb"(Generating|Shuffling) .*\[00:00[<,]| {20,}$")


def level_of(line: bytes) -> Level | None:
    """Returns the level of a line of a log; `None` for any other line."""
    for pattern in _PATTERNS:
        if match := pattern.match(line):
            return _LEVELS[match[1][:1]]
    return None


def is_chatter(line: bytes) -> bool:
    """Whether a line says something that no user needs to know.

    That is what TensorFlow's C++ libraries say of themselves, at level INFO
    or, of drivers that are not there, above; and what TensorFlow Datasets
    says of data that it has not prepared yet.

    Args:
        line: the line, without escape sequences.
    """
    level = level_of(line)
    if level is None:
        return _NEW_BAR.match(line) is not None
    if level == Level.INFO:
        return _IDLE.match(line) is not None
    return _CHATTER.search(line) is not None
