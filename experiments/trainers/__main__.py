"""``python -m experiments.trainers steps | target | peers | show``: transformers' Trainer by the way batches are made.

::

    python -m experiments.trainers steps  --data DIR --model distilbert --freeze FILE
    python -m experiments.trainers target --data DIR --seeds 5 --freeze FILE
    python -m experiments.trainers peers DIR --freeze FILE
    python -m experiments.trainers show FILE

DIR holds sst2/ and bert-uncased/, for peers gsm8k/ too; without it, the embedded sentences. Two gloo processes, a
global batch of 32, AdamW, no dropout, and every arm's loss mended to the mean over the step's samples. A file of
--freeze is gone on with: launches and seeds that it has are not run again, so a long measurement may be cut into calls
with --launches 2, then 4, and so on.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from ddpsched.cli import guarded
from ddpsched.errors import ConfigError, PeerMissing
from ddpsched.terminal import plain_console
from experiments.trainers.arms import chosen
from experiments.trainers.frozen import Frozen, read
from experiments.trainers.setting import Setting, model_table

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False)
Data = Annotated[Path | None, typer.Option(help="folder of sst2/ and bert-uncased/; the embedded sentences without")]
Arms = Annotated[str, typer.Option(help="some arms, with commas between; random is always there")]
Freeze = Annotated[Path | None, typer.Option(help="JSON file of the results, which is gone on with")]
Model = Annotated[Literal["tiny", "distilbert", "minilm"], typer.Option(help="minilm has pretrained weights")]


@app.callback()
def about() -> None:
    """Measure transformers' Trainer by the way its batches are made, peers at full strength."""


@app.command()
def steps(
    data: Data = None,
    model: Model = "distilbert",
    arms: Arms = "",
    steps: Annotated[int, typer.Option(min=1, help="of a block")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="of all arms in a launch; fewer than 8 give no interval")] = 8,
    launches: Annotated[int, typer.Option(min=1, help="fresh starts; fewer than 2 give no interval")] = 5,
    freeze: Freeze = None,
) -> None:
    """Time steps in blocks in turn, and compare each first gradient with the exact one."""
    from experiments.trainers.parts import Wanted, step_times

    def body() -> Frozen:
        wanted = Wanted(_setting(data, model), chosen(arms), freeze)
        return step_times(wanted, steps, rounds, launches)

    _end(body, model)


@app.command()
def target(
    data: Data = None,
    model: Model = "tiny",
    arms: Arms = "",
    seeds: Annotated[int, typer.Option(min=1, help="of weights and orders; 1 gives no interval")] = 5,
    every: Annotated[int, typer.Option(min=1, help="steps between two dev losses")] = 25,
    target: Annotated[
        float | None, typer.Option(min=0, help="the dev loss; without, random's within a quarter of an epoch")
    ] = None,
    freeze: Freeze = None,
) -> None:
    """Time each arm's training until its dev loss is at or below a target, for two epochs at most."""
    from experiments.trainers.parts import Wanted, dev_loss_times

    def body() -> Frozen:
        wanted = Wanted(_setting(data, model), chosen(arms), freeze)
        return dev_loss_times(wanted, seeds, every, target)

    _end(body, model)


@app.command()
def peers(
    folder: Annotated[Path, typer.Argument(help="of sst2/, gsm8k/ and bert-uncased/")],
    freeze: Freeze = None,
) -> None:
    """Plan an epoch of SST-2 and GSM8K with every policy and peer, and score them; nothing is trained."""
    from experiments.trainers.peer_table import freeze_peers

    _end(lambda: freeze_peers(folder, freeze))


@app.command()
def show(file: Annotated[Path, typer.Argument(help="that --freeze wrote")]) -> None:
    """Print a file's table, its intervals and verdicts computed anew."""
    _end(lambda: read(file))


def _setting(data: Path | None, model: str) -> Setting:
    if data is not None:
        for inner in ("sst2/train.tsv", "sst2/dev.tsv", "bert-uncased/vocab.txt"):
            if not (data / inner).is_file():
                raise ConfigError(f"--data {data}: it has no {inner}; give the folder of sst2/ and bert-uncased/")
    return Setting(model, None if data is None else str(data))


def _end(body: Callable[[], Frozen], model: str = "tiny") -> None:
    """Print what ``body`` returns, and end the process; a model that is not installed is skipped."""

    def printed() -> None:
        try:
            model_table(model)
        except PeerMissing as error:
            print(f"skipped: --model {model}: {error.reason}")
            return
        from experiments.trainers.tables import WIDTH, shown

        console = plain_console(at_least=WIDTH)
        for part in shown(body()):
            console.print(part)

    sys.exit(guarded(printed))


if __name__ == "__main__":
    app()
