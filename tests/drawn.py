"""Texts as a figure draws them, for tests that a reader can read them all."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from analysis.draw import save
from analysis.labels import settle

TOUCH = 1.5  # pixels that the boxes of two texts may share
LEAST_POINTS = 8


def drawn_texts(figure: Figure) -> list[tuple[Text, Bbox]]:
    """Return each text that is drawn, with its box in pixels."""
    found: list[tuple[Text, Bbox]] = []
    real = Text.draw

    def draw(text: Text, renderer: Any) -> None:
        real(text, renderer)
        if text.get_visible() and text.get_text().strip():
            found.append((text, Text.get_window_extent(text, renderer)))

    canvas = FigureCanvasAgg(settle(figure))
    with mock.patch.object(Text, "draw", draw):
        canvas.draw()
    return found


def faults(figure: Figure) -> list[str]:
    """Return what a reader would stumble over: texts that overlap, are cut off at the edge, or are too small."""
    texts = drawn_texts(figure)
    assert texts, "a figure without text"
    lines = []
    for (one, box), (other, second) in combinations(texts, 2):
        shared = Bbox.intersection(box, second)
        if shared is not None and min(shared.width, shared.height) > TOUCH:
            lines.append(f"{one.get_text()!r} meets {other.get_text()!r}")
    page = figure.bbox
    for text, box in texts:
        if min(box.x0 - page.x0, box.y0 - page.y0, page.x1 - box.x1, page.y1 - box.y1) < -TOUCH:
            lines.append(f"{text.get_text()!r} is cut off")
        if float(text.get_fontsize()) < LEAST_POINTS:
            lines.append(f"{text.get_text()!r} has {text.get_fontsize()} points")
    return lines


def same_bytes(draw: Callable[[], Figure], folder: Path) -> bool:
    """Return whether a figure that is made and written twice has the same bytes."""
    files = [folder / "first.png", folder / "second.png"]
    for file in files:
        save(draw(), file)
    return files[0].read_bytes() == files[1].read_bytes()
