"""The README's figure and its caption, filled from the frozen results like every other number."""

from pathlib import Path

from analysis.settings import AA
from analysis.style import STRONGEST
from ddpsched.records import write_text
from report.figures import FURTHER, GLOO, VIRTUAL
from report.measures import arms, speed
from report.render import as_text
from report.results import Measured, Results
from report.sentences import NAMED, code, near_strongest
from report.wording import interval, listed

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
FIGURE = "report/figures/speeds.png"


def block(results: Results) -> str:
    """Return the text between the README's marks: the figure, its numbers, and on what they were measured."""
    virtual, gloo = results.of(VIRTUAL), results.of(*GLOO)
    said = ["DistilBERT's shape on SST-2, four ranks, 32 samples a step; throughput over that of equal counts."]
    for m in virtual[:1]:
        numbers = [f"{code(arm)} {interval(speed(m, arm))}" for arm in arms(m) if arm in NAMED]
        said.append(
            f"Above, a CPU core ({_device(m)}) plays all ranks in turn: "
            f"{', '.join(numbers)}, static again (A/A) {interval(speed(m, AA))}."
        )
        if STRONGEST in m.setting.arms:
            said.append(
                f"{code(STRONGEST)}, of transformers' Trainer, is the strongest method of others that keeps the "
                f"samples of each step and pads; `balanced` is {near_strongest(m, 'balanced')} it."
            )
    for m in results.of(FURTHER)[:1]:
        said.append(
            f"In the middle ({_device(m)}), packed rows of others (`flattening`: random batches, `karmarkar_karp`: as "
            f"verl partitions) and four micro-batches a rank."
        )
    if gloo:
        studies = "" if len(gloo) == 1 else f", in {len(gloo)} studies, each over static in its own launches"
        said.append(f"Below, four processes share two cores ({_device(gloo[0])}{studies}).")
    launches = sorted({str(len({run.seed for run in each.setting.runs})) for each in (*virtual, *gloo)})
    said.append(f"Intervals: 95 %, of {listed(launches)} launches, whose methods take turns, step by step.")
    caption = f"*{' '.join(map(str, said))}*"
    words = "Throughput of each policy over static's, beside transformers' batch_rebalance, with the noise floor"
    return f"{BEGIN}\n![{words}]({FIGURE})\n\n{caption}\n{END}"


def _device(m: Measured) -> str:
    return str(as_text(m.table["device"]))


def update(readme: Path, results: Results) -> None:
    """Write the block between the marks of a README."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(readme, before + block(results) + after)
