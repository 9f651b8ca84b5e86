"""The README's results table, filled from the frozen results like every other number."""

from pathlib import Path
from typing import Any

from report import wording
from report.conclusions import ratio
from report.results import Results, figure_names

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def table(results: Results) -> str:
    """Return the table as Markdown, one row per setting and arm: tokens, time, and both against static."""
    rows = [
        "| setting | arm | largest rank's padded tokens / even share | longest compute | / static | step / static |",
        "|:--|:--|--:|--:|--:|--:|",
    ]
    for setting in results.settings:
        for arm in setting["arms"]:
            rows.append(f"| {' | '.join(_row(setting, arm))} |")
    return "\n".join(rows)


def _row(setting: dict[str, Any], arm: dict[str, Any]) -> list[str]:
    measured = setting["mode"] != "simulated"
    name = f"G = {setting['world_size']}, B = {setting['global_batch']}, {setting['mode']}"
    against = [
        wording.interval(ratio(setting, arm["arm"], "static", column)) if measured else wording.ABSENT
        for column in ("max_compute_s", "step_s")
    ]
    seconds = wording.duration(arm["max_compute_mean_s"]) if measured else wording.ABSENT
    return [name, f"`{arm['arm']}`", wording.number(arm["yardstick"]), seconds, *against]


def block(results: Results) -> str:
    """Return the text between the README's marks: the table, the data, the runs and the devices."""
    runs = {f"{setting['mode']}: {int(setting['arms'][0]['num_steps'])} steps" for setting in results.settings}
    data = sorted({setting["environment"]["data"] for setting in results.set_ups.values()})
    devices = sorted({setting["device"] for setting in results.settings if setting["mode"] != "simulated"})
    note = (
        f"Data: {'; '.join(data)}. Runs: {', '.join(sorted(runs))}; on {wording.listed(devices)}. "
        "Simulated rows are counts of tokens over one epoch, free of noise; in brackets 95 % intervals of "
        "launches, where arms ran in turn."
    )
    return f"{BEGIN}\n{table(results)}\n\n{note}\n{END}"


def figure(results: Results) -> bytes:
    """Return the README's figure as PNG: the first of the measured setting with most ranks."""
    measured = [setting for setting in results.settings if setting["mode"] != "simulated"]
    widest = max(measured or results.settings, key=lambda setting: setting["world_size"])
    return results.figures[next(iter(figure_names(widest["slug"]).values()))]


def update(readme: Path, results: Results) -> None:
    """Write the block between the marks of a README."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(before + block(results) + after, encoding="utf-8")
