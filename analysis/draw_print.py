"""Figures of print size of one setting, written into a folder."""

from pathlib import Path
from typing import Any

from analysis.draw import lowest_seed, save
from analysis.draw_speeds import draw_speeds
from analysis.draw_step_parts import draw_step_parts
from analysis.draw_tradeoffs import draw_tradeoffs
from analysis.figures import draw_outline
from analysis.settings import Setting
from analysis.speeds import speeds
from analysis.step_parts import step_parts
from analysis.tradeoffs import tradeoffs


def draw_print(setting: Setting, table: dict[str, Any], folder: Path) -> list[Path]:
    """Write the page of figures 1 to 5, and those of speed, its costs and the parts of a step; return their paths.

    ``table``: the setting's of ``tables.study_tables``. Without a baseline there is no speed.
    """
    steps = {arm: run.steps for arm, run in lowest_seed(setting).items()}
    figures = {"8-outline": draw_outline(steps, setting.label, memory=None if setting.took_turns else steps)}
    if not (parts := step_parts(setting)).empty:
        figures["9-step-parts"] = draw_step_parts({setting.label: parts})
    if table["baseline"] is not None and len(setting.arms) > 1:
        figures["10-speeds"] = draw_speeds({setting.label: speeds(table)})
        figures["11-tradeoffs"] = draw_tradeoffs(tradeoffs(setting, table), setting.label)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{setting.slug}-{name}.png")
        save(figure, paths[-1])
    return paths
