"""The README's figure and results table, filled from the frozen results like every other number."""

from pathlib import Path

from analysis.settings import AA
from ddpsched.visible_text import visible
from report.figures import GLOO, ON_GLOO, ON_VIRTUAL, VIRTUAL
from report.measures import arms, speed, time
from report.render import as_text
from report.results import Measured, Results
from report.sentences import code
from report.wording import interval, listed, number

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
FIGURE = "report/figures/speeds.png"


def table(results: Results) -> str:
    """Return the table as Markdown, a row an arm: throughput over static's, and the largest rank's padded tokens."""
    rows = [
        "| arm | on | throughput / static | verdict | largest rank's padded tokens / even share |",
        "|:--|:--|--:|:--|--:|",
    ]
    for place, names in ((ON_VIRTUAL, (VIRTUAL,)), (ON_GLOO, GLOO)):
        for measured in results.of(*names):
            rows += [_row(measured, arm, place) for arm in (*arms(measured), AA)]
    return "\n".join(rows)


def _row(measured: Measured, arm: str, place: str) -> str:
    name = "static again (A/A)" if arm == AA else code(arm)
    verdict = time(measured, arm).get("verdict") or ""
    (yardstick,) = (row["yardstick"] for row in measured.table["arms"] if row["arm"] == arm)
    return f"| {name} | {place} | {interval(speed(measured, arm))} | {verdict} | {number(yardstick)} |"


def block(results: Results) -> str:
    """Return the text between the README's marks: the figure, the table, the data and the devices."""
    found = results.of(VIRTUAL, *GLOO)
    data = sorted({each.view["environment"]["data"] for each in found})
    devices = sorted({each.table["device"] for each in found})
    launches = sorted({len({run.seed for run in each.setting.runs}) for each in found})
    note = (
        f"DistilBERT's shape, B = 32, in brackets 95 % intervals of {listed(list(map(str, launches)))} launches. "
        f"Data: {'; '.join(map(as_text, data))}. On {listed([as_text(device) for device in devices])}."
    )
    words = "Throughput over static's, with transformers' batch_rebalance and the noise floor"
    return f"{BEGIN}\n![{words}]({FIGURE})\n\n{table(results)}\n\n{visible(note)}\n{END}"


def update(readme: Path, results: Results) -> None:
    """Write the block between the marks of a README."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(before + block(results) + after, encoding="utf-8")
