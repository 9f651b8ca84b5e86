"""Figures as files: one run beside its static partner, and all arms of a setting."""

import textwrap
from io import BytesIO
from operator import attrgetter
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image  # comes with matplotlib

from analysis.figures import FIGURES, Steps
from analysis.labels import settle
from analysis.load import Run, Study
from analysis.settings import Setting, partner, settings
from analysis.style import LONGEST_TITLE
from ddpsched.own_folder import check_own
from ddpsched.records import write_bytes
from ddpsched.visible_text import visible

SCREEN_DPI = 110


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, png(figure))


def png(figure: Figure) -> bytes:
    """Return a figure as PNG in a palette of 256 colours, which halves the size.

    It has no date inside: the same figure gives the same bytes.
    """
    settle(figure)
    figure.set_dpi(max(SCREEN_DPI, figure.dpi))  # figures of print size have their own
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    written = BytesIO()
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(256).save(written, "PNG")
    return written.getvalue()


def figures_folder(folder: Path) -> Path:
    """Return the figures folder of a run or a study. Raises DataError where it, or a file in it, is a link or pipe."""
    check_own(folder / "figures")
    return folder / "figures"


def draw_all(steps: Steps, title: str, folder: Path, prefix: str = "") -> list[Path]:
    """Write the five figures as ``<folder>/<prefix><figure>.png``, and return their paths."""
    paths: list[Path] = []
    for name, draw in FIGURES.items():
        paths.append(folder / f"{prefix}{name}.png")
        save(draw(steps, textwrap.fill(visible(title, LONGEST_TITLE), 100)), paths[-1])
    return paths


def draw_run(run: Run, static: Run | None) -> list[Path]:
    """Write ``<run>/figures/``, the run beside its static partner if it has one; return the paths."""
    steps = {} if static is None else {"static": static.steps}
    steps[run.policy] = run.steps
    beside = "" if static is None else f" beside {static.name}"
    size = f"G = {run.config['world_size']}, B = {run.config['global_batch']}"
    title = f"{run.name}{beside}: {size}, {run.mode}, {run.device}, seed {run.seed}"
    return draw_all(steps, title, figures_folder(run.path))


def lowest_seed(setting: Setting) -> dict[str, Run]:
    """Return each arm's run of the lowest seed that all arms have, of one launch where there is one, or its first."""
    for key in (attrgetter("observation"), attrgetter("seed")):
        common = set.intersection(*({key(run) for run in runs} for runs in setting.arms.values()))
        if common:
            lowest = next(key(run) for run in setting.runs if key(run) in common)
            return {arm: next(run for run in runs if key(run) == lowest) for arm, runs in setting.arms.items()}
    return {arm: runs[0] for arm, runs in setting.arms.items()}


def draw_setting(setting: Setting, folder: Path) -> list[Path]:
    """Write ``<folder>/<slug>-*.png``, each arm's run of the lowest seed that all arms have; return the paths."""
    shown = lowest_seed(setting)
    seeds = sorted({run.seed for run in shown.values()})
    title = f"{setting.label}, seed {', '.join(map(str, seeds))}"
    return draw_all({arm: run.steps for arm, run in shown.items()}, title, folder, f"{setting.slug}-")


def draw_study(study: Study) -> list[Setting]:
    """Write each run's figures and each setting's; return the settings."""
    all_settings = settings(study.runs)
    for run in study.runs:
        draw_run(run, partner(run, study.runs))
    for setting in all_settings:
        draw_setting(setting, figures_folder(study.path))
    return all_settings
