"""The README's figure and its caption, filled from the frozen results like every other number."""

from pathlib import Path

from analysis.style import STRONGEST
from ddpsched.records import write_text
from report.figures import FURTHER, GLOO, VIRTUAL
from report.measures import arms
from report.over_others import near_strongest, packing_in_short
from report.render import as_text
from report.repeated import elsewhere, in_short
from report.results import Results
from report.sentences import code, gains
from report.wording import listed, processor

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
FIGURE = "report/figures/first.png"


def block(results: Results) -> str:
    """Return the text between the README's marks: the figure, its numbers, and on what they were measured."""
    said = []
    for m in results.of(VIRTUAL)[:1]:
        launches = len({run.seed for run in m.setting.runs})
        said.append(
            "Throughput over that of equal counts. DistilBERT's shape on SST-2, 32 samples a step on four ranks, which "
            f"one CPU core ({_processor(m.table['device'])}) plays in turn; {launches} launches, in which the methods "
            "take turns, step by step."
        )
        if STRONGEST in arms(m):
            said.append(
                f"{code(STRONGEST)}, of transformers' Trainer, is the strongest method of others that keeps the "
                f"samples of each step and pads; `balanced` is {near_strongest(m, 'balanced')} it."
            )
    for m in results.of(FURTHER)[:1]:
        said.append(f"{packing_in_short(m)} ({_processor(m.table['device'])}).")
    for each in elsewhere(VIRTUAL, results):
        said.append(f"On another processor ({listed(list(map(_processor, each['devices'])))}): {in_short(each)}.")
    if gloo := results.of(*GLOO):
        said.append(f"On four processes that share two cores: {gains(gloo)}.")
    if results.of(VIRTUAL):
        said.append("[The report](report/report.md#what-it-buys) has intervals, memory and other machines.")
    caption = f"*{' '.join(map(str, said))}*"
    words = "Throughput of each policy over static's, beside transformers' batch_rebalance, with the noise floor"
    return f"{BEGIN}\n![{words}]({FIGURE})\n\n{caption}\n{END}"


def _processor(device: str) -> str:
    return as_text(processor(device))


def update(readme: Path, results: Results) -> None:
    """Write the block between the marks of a README."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(readme, before + block(results) + after)
