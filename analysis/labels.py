"""Labels beside what they name, instead of legends: at the ends of lines and at points, moved apart where they meet."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox, offset_copy

from analysis.style import SMALL
from ddpsched.visible_text import LONGEST_LABEL, visible

Side = Literal["left", "center", "right"]
Array = npt.NDArray[np.float64]
POINTS = 72.0  # of an inch
LINE = 1.25  # height of a line of text, in its size
BESIDE = 6  # points from a panel to the labels of its lines
SIDES: dict[int, Side] = {1: "left", 0: "center", -1: "right"}  # of the text that is at the point, by direction
REACHES = (5, 11, 18, 27, 38, 50)  # points from a point to its label


def spread(
    wanted: Sequence[float], heights: Sequence[float], low: float = -np.inf, high: float = np.inf
) -> list[float]:
    """Return the middles of labels of these heights, in the same order and as near to the wanted ones as can be.

    The sum of squared moves is the smallest there is: neighbours that meet share the mean of their moves. Where all
    fit between ``low`` and ``high`` they stay there.

    >>> spread([1.0, 1.0, 9.0], [2.0, 2.0, 2.0])
    [0.0, 2.0, 9.0]
    """
    order = np.argsort(wanted, kind="stable")
    tall = np.asarray(heights, dtype=np.float64)[order]
    stacked = np.cumsum(tall) - tall / 2  # the middles, if all stood on each other from 0
    blocks: list[list[float]] = []  # [sum of the places that the stack would begin at, labels]
    for place, offset in zip(np.asarray(wanted, dtype=np.float64)[order], stacked, strict=True):
        blocks.append([float(place - offset), 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    begins = np.repeat([total / count for total, count in blocks], [int(count) for _, count in blocks])
    result = np.empty(len(order))
    result[order] = np.clip(begins, low, max(low, high - float(tall.sum()))) + stacked
    return [float(place) for place in result]


def short(text: str, width: int = 16) -> str:
    """Return an arm's label as figures show it, on more lines where it is long; a dollar sign begins no formula.

    >>> short("batch_rebalance_accumulate (M = 4)")
    'batch_rebalance_\\naccumulate\\n(M = 4)'
    """
    shown = visible(text, LONGEST_LABEL).replace(" = ", "\u00a0=\u00a0").replace("-", "\u2010")
    # textwrap parts words at hyphens: of a long name the underscores stand for them meanwhile
    words = [word if len(word) <= width else word.replace("_", "-") for word in shown.split(" ")]
    parted = "\n".join(textwrap.wrap(" ".join(words), width)).replace("-", "_")
    return parted.replace("\u2010", "-").replace("\u00a0", " ")


def named(arm: str) -> str:
    """Return the label of an arm's line; matplotlib hides labels that begin with an underscore."""
    return f" {arm}" if arm.startswith("_") else arm


class EndLabel(Annotation):
    """The label of a line, beside the right end of its panel."""

    def __init__(self, ax: Axes, line: Line2D, size: float) -> None:
        self.line, self.panel, self.size = line, ax, size
        self.beside = offset_copy(ax.transAxes, _figure(ax), BESIDE, 0, units="points")
        super().__init__(
            short(str(line.get_label())), (1.0, 0.5), (1.0, 0.5), xycoords="axes fraction", textcoords=self.beside,
            va="center", ha="left", fontsize=size, color=line.get_color(), annotation_clip=False, linespacing=1.0,
            parse_math=False, arrowprops=_lead(line.get_color()),
        )  # fmt: skip

    def put(self, end: tuple[float, float], height: float) -> None:
        """Write it at a height, joined to the line's end where that is elsewhere; all in shares of the panel."""
        self.xy = end
        self.set_position((1.0, height))
        box, inch = self.panel.get_window_extent(), _figure(self.panel).dpi / POINTS
        far = abs(height - end[1]) * box.height > 0.35 * self.size * inch
        _join(self, far or (1 - end[0]) * box.width > 8 * inch)


class PointLabel(Annotation):
    """The name of a point, in a direction from it: (1, 0) is right, (0, 1) above."""

    def __init__(
        self, at: tuple[float, float], name: str, shade: str, size: float, toward: tuple[int, int] = (1, 0),
        offset: tuple[float, float] = (REACHES[0], 0),
    ) -> None:  # fmt: skip
        right, up = toward
        near = {1: 0.0, 0: 0.5, -1: 1.0}  # the side of the text that is at the point
        self.given = (at, name, shade, size)
        super().__init__(
            short(name, 30), at, offset, textcoords="offset points", va="center", ha=SIDES[right], fontsize=size,
            color=shade, annotation_clip=False, linespacing=1.0, parse_math=False,
            arrowprops={**_lead(shade), "relpos": (near[right], 0.5 if right else near[up])},
        )  # fmt: skip
        self.set_in_layout(False)


def _lead(shade: Any) -> dict[str, Any]:
    """Return the look of the line from a label to what it names."""
    return {"arrowstyle": "-", "lw": 0.5, "color": shade, "shrinkA": 0, "shrinkB": 1, "relpos": (0.0, 0.5)}


def _join(note: Annotation, joined: bool) -> None:
    assert note.arrow_patch is not None, "made with arrowprops"
    note.arrow_patch.set_visible(joined)


def label_ends(ax: Axes, size: float = SMALL) -> None:
    """Write each line's label at the right of the panel, at the height of its end, in its colour.

    Lines whose label begins with an underscore have none. ``settle`` moves them apart.
    """
    for line in ax.lines:
        if line.get_visible() and not str(line.get_label()).startswith("_"):
            _add(ax, EndLabel(ax, line, size))


def name_beside(ax: Axes, names: Sequence[str], colours: Sequence[str], size: float = SMALL) -> None:
    """Write names at the right of the panel, one below the other, where lines have no ends of their own."""
    beside = offset_copy(ax.transAxes, _figure(ax), BESIDE, 0, units="points")
    tops = 1 - np.arange(len(names)) / max(6, len(names))
    for name, shade, top in zip(names, colours, tops, strict=True):
        ax.text(
            1.0,
            top,
            short(name, 24),
            color=shade,
            fontsize=size,
            va="top",
            linespacing=1.0,
            transform=beside,
            parse_math=False,
        )


def label_points(
    ax: Axes,
    xs: Sequence[float],
    ys: Sequence[float],
    names: Sequence[str],
    colours: Sequence[str],
    size: float = SMALL,
) -> None:
    """Write each point's name near it; ``settle`` finds the places."""
    for x, y, name, shade in zip(xs, ys, names, colours, strict=True):
        _add(ax, PointLabel((x, y), name, shade, size))


def _add(ax: Axes, note: Annotation) -> None:
    ax.add_artist(note)
    note.set_clip_on(False)
    _join(note, False)


def settle(figure: Figure) -> Figure:
    """Return the figure with its labels in places where they do not meet; once all panels are drawn."""
    labelled = [ax for ax in figure.axes if any(isinstance(each, EndLabel | PointLabel) for each in ax.texts)]
    if labelled and (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)  # only then are the panels' sizes known
        figure.set_layout_engine("none")  # they stay, so that labels are where they were placed
    for ax in labelled:
        _settle_ends(ax, [each for each in ax.texts if isinstance(each, EndLabel)])
        _settle_points(ax, [each for each in ax.texts if isinstance(each, PointLabel)])
    return figure


def _settle_ends(ax: Axes, notes: Sequence[EndLabel]) -> None:
    """Put each label at the height of its line's end; those that would meet are spread."""
    inch, box = _figure(ax).dpi / POINTS, ax.get_window_extent()
    ends = {}
    for note in notes:
        data = np.column_stack([np.asarray(values, np.float64) for values in note.line.get_data()])
        data = data[np.isfinite(data).all(axis=1)]
        if len(data):
            x, y = ax.transAxes.inverted().transform(ax.transData.transform(data[-1]))
            ends[note] = (min(1.0, float(x)), float(np.clip(y, 0, 1)))
    if ends:
        line = LINE * inch / box.height
        heights = [note.size * line * (note.get_text().count("\n") + 1) for note in ends]
        below = max(heights) / 2  # there is room for half a line beside the numbers of the axis
        places = spread([y for _, y in ends.values()], heights, -below, 1.0)
        for (note, end), place in zip(ends.items(), places, strict=True):
            note.put(end, place)


def _settle_points(ax: Axes, notes: Sequence[PointLabel]) -> None:
    """Put each name, from the top downwards, where it meets least: names, points, straight lines and the outside."""
    inch, panel = _figure(ax).dpi / POINTS, ax.get_window_extent()
    at = {note: ax.transData.transform(note.xy) for note in notes}
    points = {note: Bbox.from_bounds(x - 3 * inch, y - 3 * inch, 6 * inch, 6 * inch) for note, (x, y) in at.items()}
    straight = [line for line in ax.lines if notes and np.size(line.get_xdata()) == 2]
    taken = [line.get_window_extent().padded(inch) for line in straight]
    for note in sorted(notes, key=lambda note: (-at[note][1], at[note][0])):
        text = Text.get_window_extent(note)
        others = [*taken, *(box for other, box in points.items() if other is not note)]
        box, toward, offset, reach = min(
            _places(at[note], text.width, text.height, inch), key=lambda each: _cost(each[0], others, panel)
        )
        taken.append(box)
        note.remove()
        placed = PointLabel(*note.given, toward, offset)
        _add(ax, placed)
        _join(placed, reach > REACHES[0])


def _places(
    at: Array, width: float, height: float, inch: float
) -> Iterator[tuple[Bbox, tuple[int, int], tuple[float, float], int]]:
    """Yield boxes around a point, the nearest first, each with its direction, its offset and its reach in points."""
    for reach, (right, up) in product(REACHES, ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))):
        far = reach * inch * (0.75 if right and up else 1.0)
        x, y = right * far, up * (far + (0 if right else height / 2))  # of the text's side and middle, from the point
        left = at[0] + x + {1: 0.0, 0: -width / 2, -1: -width}[right]
        box = Bbox.from_bounds(left, at[1] + y - height / 2, width, height)
        yield box, (right, up), (x / inch, y / inch), reach


def _cost(box: Bbox, taken: Sequence[Bbox], panel: Bbox) -> float:
    """Return the area that a box shares with others, and of its part outside the panel."""
    shared = sum(each.width * each.height for other in taken if (each := Bbox.intersection(box, other)) is not None)
    inside = Bbox.intersection(box, panel)
    return shared + box.width * box.height - (0.0 if inside is None else inside.width * inside.height)


def _figure(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure), "panels of a figure"
    return figure
