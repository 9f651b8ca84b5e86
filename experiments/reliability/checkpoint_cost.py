"""The time of a step with checkpoints against without, as a finding: at most 1.03.

``python -m experiments.reliability.checkpoint_cost [--model tiny|distilbert] [--rounds 40] [--launches 8] [--freeze]``:
the arms take turns, as in ``experiments.benchmarks.checkpointing``, which prints their times in full.
"""

from typing import Annotated, Literal

import typer

from experiments.benchmarks.bench import AA, judged, launched
from experiments.benchmarks.checkpointing import MODELS, WITH, measure
from experiments.reliability.findings import Finding, Freeze, report

MOST = 1.03
TITLES = {"tiny": "the tiny model", "distilbert": "DistilBERT's shape"}
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    model: Annotated[Literal["tiny", "distilbert"], typer.Option(help="whose steps")] = "tiny",
    rounds: Annotated[int, typer.Option(min=1, help="of all arms in a launch")] = 40,
    launches: Annotated[int, typer.Option(min=1, help="fresh starts of all arms")] = 8,
    freeze: Freeze = False,
) -> None:
    """Measure, and compare with the most that is allowed."""
    found = launched(measure, model, 1, rounds, launches=launches)
    (arms,) = judged([[seconds for seconds, _ in found]])
    ratio = arms[WITH].ratio
    assert ratio is not None
    finding = Finding(
        f"checkpointing_{model}",
        f"A step of {TITLES[model]} with a checkpoint every {MODELS[model].every} steps, over one without",
        f"on average at most {MOST}",
        f"{arms[WITH].text}; the same arm twice {arms[AA].text}; {launches} launches",
        ratio.value <= MOST,
        f"python -m experiments.reliability.checkpoint_cost --model {model} --rounds {rounds} --launches {launches}",
        {
            "ms_a_step": {name: 1e3 * each.seconds for name, each in arms.items()},
            "ms_a_checkpoint": {
                part: 1e3 * sum(parts[part] for _, parts in found) / len(found) for part in found[0][1]
            },
        },
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
