"""Figures and tables as text for a person."""

import math

NONE = "-"


def number(value, digits=3):
    """A number as text, `-` for None and NaN."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.{digits}f}"


def amount(value):
    """A number of any size as text with three digits, `-` for None and NaN."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def percent(share, digits=1):
    """A share, 0 to 1, as text."""
    return f"{100 * share:.{digits}f} %"


def aligned(titles, rows, left=1, gap=2, ruled=True):
    """A table as text.

    Args:
      titles: List of the columns' titles.
      rows: List of lists of texts.
      left: How many columns are flush left; the others are flush right.
      gap: Spaces between two columns.
      ruled: Whether a line is drawn below the titles.
    """
    lines = [titles, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if ruled:
        lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        (gap * " ")
        .join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(
                zip(line, widths, strict=True)
            )
        )
        .rstrip()
        for line in lines
    )
