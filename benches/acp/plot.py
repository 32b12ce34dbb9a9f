#!/usr/bin/env python3
"""Draws the table of `scripts/bench` as SVG: how many times less `skein acp` takes than goose, and the goals.

    plot.py docs/performance.md FILE.svg

The scale is logarithmic. Rows without a goal are left out. Standard library only.
"""

import html
import math
import sys
from pathlib import Path

BEGIN, END = "<!-- bench: written by scripts/bench -->\n", "<!-- bench: end -->\n"
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 350, 70, 64, 28, 14
# Where the scale begins and ends: as much as goose, and so many times less.
LOW, HIGH = 0.8, 50
TICKS = [1, 2, 5, 10, 20, 50]
MEETS, MISSES, GOAL, TEXT, GRID = "#2a7f62", "#c8702a", "#222222", "#222222", "#dddddd"


def factor(cell):
    """How many times less: 6.5 for `**1/6.5**`, 0.5 for `2.00`."""
    text = cell.strip("* ")
    return float(text[2:]) if text.startswith("1/") else 1 / float(text)


def read_rows(page):
    """The label, the factor and the goal of each row with a goal."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] and cells[4].startswith("1/"):
            yield cells[0], factor(cells[3]), factor(cells[4])


def across(value):
    """The horizontal place of a factor."""
    share = math.log(min(max(value, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def text(x, y, words, anchor="start", size=13):
    escaped = html.escape(words)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{TEXT}">{escaped}</text>'


def bar(y, label, value, goal):
    color = MEETS if value >= goal * 0.9999 else MISSES
    middle, start = y + ROW / 2, across(LOW)
    yield text(LEFT - 10, middle + 4, label, "end")
    yield f'<rect x="{start:.1f}" y="{middle - BAR / 2}" width="{across(value) - start:.1f}" height="{BAR}" fill="{color}"/>'
    place = across(goal)
    yield f'<line x1="{place:.1f}" y1="{y + 3}" x2="{place:.1f}" y2="{y + ROW - 3}" stroke="{GOAL}" stroke-width="2"/>'
    # Behind the bar, or behind the mark of the goal if that is in the way.
    end = across(value)
    yield text((place if 0 <= place - end < 38 else end) + 6, middle + 4, f"{value:.1f}×", size=12)


def draw(page):
    """The plot of the table in a Markdown page. Fails if the page has no row with a goal."""
    rows = list(read_rows(page))
    if not rows:
        raise ValueError("the page has no table of scripts/bench with goals")
    bottom = TOP + len(rows) * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 16}" '
        f'viewBox="0 0 {WIDTH} {bottom + 16}" font-family="sans-serif" role="img">',
        "<title>How many times less skein acp takes than goose</title>",
        f'<rect width="{WIDTH}" height="{bottom + 16}" fill="#ffffff"/>',
        text(LEFT, 20, "How many times less skein acp takes than goose", size=14),
        f'<rect x="{LEFT}" y="28" width="12" height="8" fill="{MEETS}"/>',
        text(LEFT + 17, 36, "meets the goal", size=11),
        f'<rect x="{LEFT + 120}" y="28" width="12" height="8" fill="{MISSES}"/>',
        text(LEFT + 137, 36, "misses it", size=11),
        f'<line x1="{LEFT + 216}" y1="26" x2="{LEFT + 216}" y2="38" stroke="{GOAL}" stroke-width="2"/>',
        text(LEFT + 222, 36, "goal", size=11),
    ]
    for tick in TICKS:
        x = across(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>')
        parts.append(text(x, TOP - 8, f"{tick}×", "middle", 11))
    for number, row in enumerate(rows):
        parts += bar(TOP + number * ROW, *row)
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    Path(sys.argv[2]).write_text(draw(Path(sys.argv[1]).read_text()))


if __name__ == "__main__":
    main()
