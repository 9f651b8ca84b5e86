"""The README's results table, filled from the frozen results like every other number."""

import re
from pathlib import Path
from typing import Any

from ddpsched.visible_text import visible
from report import wording
from report.conclusions import ratio
from report.render import as_text
from report.results import Results

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def table(results: Results) -> str:
    """Return the table as Markdown, one row per setting and arm: tokens, and times where arms ran in turn."""
    headings = ["setting", "arm", "largest rank's padded tokens / even share"]
    if any(map(in_turn, results.settings)):
        headings += ["longest compute", "/ static", "step / static"]
    rows = [f"| {' | '.join(headings)} |", f"|:--|:--|{'--:|' * (len(headings) - 2)}"]
    for setting in results.settings:
        for arm in setting["arms"]:
            rows.append(f"| {' | '.join(_row(setting, arm)[: len(headings)])} |")
    return "\n".join(rows)


def in_turn(setting: dict[str, Any]) -> bool:
    """Return whether the arms of a setting took turns, so that their times may be compared."""
    ratios = (ratio(setting, arm["arm"], "static", "step_s") for arm in setting["arms"] if arm["arm"] != "static")
    return setting["mode"] != "simulated" and any(each.get("low") is not None for each in ratios)


def _row(setting: dict[str, Any], arm: dict[str, Any]) -> list[str]:
    name = as_text(f"G = {setting['world_size']}, B = {setting['global_batch']}, {setting['mode']}")
    times = [wording.ABSENT] * 3
    if in_turn(setting):
        against = (ratio(setting, arm["arm"], "static", column) for column in ("max_compute_s", "step_s"))
        times = [wording.duration(arm["max_compute_mean_s"]), *map(wording.interval, against)]
    return [name, f"`{re.sub('[`|]', '', visible(arm['arm']))}`", wording.number(arm["yardstick"]), *times]


def block(results: Results) -> str:
    """Return the text between the README's marks: the table, the data, the runs and the devices."""
    runs = {f"{setting['mode']}: {int(setting['arms'][0]['num_steps'])} steps" for setting in results.settings}
    data = sorted({setting["environment"]["data"] for setting in results.set_ups.values()})
    devices = sorted({setting["device"] for setting in results.settings if setting["mode"] != "simulated"})
    times = (
        "in brackets 95 % intervals of launches" if any(map(in_turn, results.settings)) else "they are free of noise"
    )
    note = (
        f"Data: {'; '.join(map(as_text, data))}. Runs: {', '.join(map(as_text, sorted(runs)))}; "
        f"on {wording.listed([as_text(device) for device in devices])}. "
        f"Counts of tokens; {times}. Times are given where arms ran in turn."
    )
    return f"{BEGIN}\n{table(results)}\n\n{note}\n{END}"


def update(readme: Path, results: Results) -> None:
    """Write the block between the marks of a README."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(before + block(results) + after, encoding="utf-8")
