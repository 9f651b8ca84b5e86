"""The README's figure and its caption, filled from the frozen results like every other number."""

from pathlib import Path

from analysis.settings import AA
from analysis.style import STRONGEST
from ddpsched.records import write_text
from report.figures import FURTHER, GLOO, VIRTUAL
from report.measures import arms, speed
from report.render import as_text
from report.repeated import again, repeats_of
from report.results import Results
from report.sentences import NAMED, code, gains, near_strongest
from report.wording import interval, listed

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
FIGURE = "report/figures/first.png"


def block(results: Results) -> str:
    """Return the text between the README's marks: the figure, its numbers, and on what they were measured."""
    said = []
    for m in results.of(VIRTUAL)[:1]:
        numbers = {arm: f"{code(arm)} {interval(speed(m, arm))}" for arm in arms(m) if arm in NAMED}
        said.append(
            "DistilBERT's shape on SST-2, 32 samples a step on four ranks, which one CPU core "
            f"({as_text(m.table['device'])}) plays in turn: throughput over that of equal counts, "
            f"{', '.join(numbers.values())}, static again (A/A) {interval(speed(m, AA))}."
        )
        if STRONGEST in numbers:
            said.append(
                f"{code(STRONGEST)}, of transformers' Trainer, is the strongest method of others that keeps the "
                f"samples of each step and pads; `balanced` is {near_strongest(m, 'balanced')} it."
            )
        launches = len({run.seed for run in m.setting.runs})
        said.append(f"Intervals: 95 %, of {launches} launches, in which the methods take turns, step by step.")
    for each in repeats_of(VIRTUAL, results.reproduced)[:1]:
        said.append(f"Run again on {listed(each['devices'])}: {again(each)}.")
    if gloo := results.of(*GLOO):
        said.append(f"On four processes that share two cores: {gains(gloo)}.")
    if results.of(FURTHER):
        said.append("Packing without planning, memory and other machines: [the report](report/report.md#what-it-buys).")
    caption = f"*{' '.join(map(str, said))}*"
    words = "Throughput of each policy over static's, beside transformers' batch_rebalance, with the noise floor"
    return f"{BEGIN}\n![{words}]({FIGURE})\n\n{caption}\n{END}"


def update(readme: Path, results: Results) -> None:
    """Write the block between the marks of a README."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(readme, before + block(results) + after)
