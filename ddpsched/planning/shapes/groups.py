"""Groups of shapes whose programs are there together, where few may be: ``compile.live``."""

from collections.abc import Collection, Sequence

from ddpsched.costs.shape_menu import Shape


def group_of(shapes: Sequence[Shape], needed: Collection[Shape], live: int, before: Collection[Shape]) -> list[Shape]:
    """Return the shapes to have programs of next: those that a step needs, and their neighbours up to ``live``.

    ``shapes``: the menu, in the order in which samples come or its reverse. ``before``: the group so far, which tells
    whether shapes rise or fall: the neighbours are those that are still to come. A step that needs more than ``live``
    shapes, or shapes farther apart, gets all that it needs, and no others.

    >>> menu = [(8, 10), (8, 20), (6, 30), (4, 40), (2, 50)]
    >>> group_of(menu, [(6, 30)], 2, before=menu[:2])
    [(6, 30), (4, 40)]
    >>> group_of(menu, [(6, 30)], 2, before=menu[3:])
    [(8, 20), (6, 30)]
    """
    places = sorted(shapes.index(shape) for shape in needed)
    first, last = places[0], places[-1]
    if last - first >= live:
        return [shapes[place] for place in places]
    if before and max(shapes.index(shape) for shape in before) > last:  # they fall
        first = last - live + 1
    first = max(0, min(first, len(shapes) - live))
    return list(shapes[first : first + live])
