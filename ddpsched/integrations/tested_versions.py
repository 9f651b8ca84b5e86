"""The versions of other people's frameworks with which their loops are tested."""

import warnings
from importlib.metadata import version

TESTED = {  # the first and the last; a loop is read from what these call, and in which order
    "transformers": ((5, 18), (5, 23)),
    "accelerate": ((1, 14), (1, 15)),
    "pytorch-lightning": ((2, 5), (2, 6)),
    "lightning": ((2, 5), (2, 6)),
}


def warn_of_version(package: str) -> None:
    """Warn, with the range, where ``package`` is of a version outside of it."""
    installed = version(package)
    numbers = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in installed.split(".")[:2])
    first, last = TESTED[package]
    if not first <= numbers <= last:
        tested = " to ".join(".".join(map(str, each)) for each in (first, last))
        warnings.warn(
            f"ddpsched is tested with {package} {tested}, not {installed}; install one of these, or compare a few "
            "steps with ddpsched.assert_gradient_exact",
            stacklevel=3,
        )
