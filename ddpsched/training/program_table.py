"""ProgramTable: the compiled forward of a model, in which each shape finds its program at once.

torch keeps the programs of a function in one list, and tries the guards of one after another until those of a program
hold, which takes time in each call. So each shape here has a function of its own, with one program, and is looked up by
the shape of its input; the guards of that program are checked as ever.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from ddpsched.costs.shape_menu import Shape


class ProgramTable:
    """A callable in place of ``model``'s forward. ``compile``: torch.compile with its options.

    ``by_inductor``: whether its backend is inductor, which alone may record programs as CUDA graphs.
    """

    def __init__(self, model: torch.nn.Module, compile: Callable[..., Any], by_inductor: bool) -> None:
        self._model, self._compile, self._by_inductor = model, compile, by_inductor
        self.clear()

    def add(self, shape: Shape) -> None:
        """Give this shape of ``input_ids`` a function of its own, whose first call makes its program."""
        if shape not in self._by_shape:
            self._by_shape[shape] = self._others = self._own(f"{shape[0]}_{shape[1]}")

    def clear(self) -> None:
        """Drop the functions of all shapes."""
        self._others = self._own("any")
        self._by_shape: dict[tuple[int, ...], Any] = {}

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Run the program of this shape.

        Shapes that were not added share the function of the last one that was: its guards then say what is new in them.
        """
        if self._by_inductor:  # else this would import it, which takes seconds
            torch.compiler.cudagraph_mark_step_begin()  # outputs of the call before are not needed any more
        return self._by_shape.get(tuple(inputs["input_ids"].shape), self._others)(*args, **inputs)

    def _own(self, name: str) -> Any:
        """Return the compiled model as a function whose code, to which torch ties programs, is no other's."""
        model = self._model

        def forward(*args: Any, **inputs: Any) -> Any:
            return model._call_impl(*args, **inputs)

        code = forward.__code__.replace(co_name=f"forward_{name}")
        return self._compile(FunctionType(code, forward.__globals__, code.co_name, None, forward.__closure__))
