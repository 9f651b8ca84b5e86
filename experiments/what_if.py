"""Step times of each policy on more ranks, and on ranks of unequal speed, computed, as tables and a figure.

    python -m experiments.what_if [--calibration device.json] [--network network.json] [--world-sizes 4 64 1024]
        [--slow-share 0.125] [--slowness 1.5] [--figure speed-up.png] [--freeze report/results/what_if/rows.json]

Times of micro-batches are those of `ddpsched calibrate`, by default DistilBERT's on one CPU core; waits for messages
those of `ddpsched calibrate --network`, or of a network of given latency and bandwidth. report/notes/simulator.md lists
what is assumed. Lengths are SST-2's, drawn from its histogram, unless a file is named.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError
from rich import box
from rich.table import Table

from analysis.draw import save
from analysis.speed_up import draw_speed_up, speed_up_table
from ddpsched.arguments import check_output
from ddpsched.cli import guarded
from ddpsched.costs.calibration import Calibration, check_identity
from ddpsched.costs.network import Network
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.length_files import read_lengths
from ddpsched.errors import ConfigError
from ddpsched.planning.what_if import ARMS, DISTILBERT, what_if
from ddpsched.records import write_json
from ddpsched.table import first_fault
from ddpsched.terminal import plain_console

SAMPLES, STEPS = 2**16, 24  # least lengths, and largest steps, that are drawn: minmax's windows hold two steps
MOST_DRAWN = 2**22
SIZES = (4, 16, 64, 256, 1024, 4096)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.what_if", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibration", help="file of `ddpsched calibrate`")
    parser.add_argument("--network", help="file of `ddpsched calibrate --network`")
    parser.add_argument("--gradient-bytes", type=float, help="of a step's one all-reduce, in place of the file's")
    parser.add_argument("--bandwidth", type=float, help="bytes per second, in place of the file's")
    parser.add_argument("--latency", type=float, help="seconds per message, in place of the file's")
    parser.add_argument("--lengths", type=Path, help="file of lengths, as `ddpsched plan` takes")
    parser.add_argument("--world-sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--samples-per-rank", type=int, default=8)
    parser.add_argument("--policies", nargs="+", default=ARMS)
    parser.add_argument("--slow-share", type=float, default=0.125, help="of the ranks; 0 for equal speeds alone")
    parser.add_argument("--slowness", type=float, default=1.5, help="how many times as long these take")
    parser.add_argument("--noise", action="store_true", help="draw each time as the calibration's passes differed")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, help="PNG to write")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--freeze", type=Path, help="JSON of the rows, and of what they are computed from, to write")
    parser.add_argument("--force", action="store_true", help="with files of different models or devices")
    return parser.parse_args(words)


def network_of(given: argparse.Namespace) -> Network:
    """Return the network of a file, with what is given in its place. Raises ConfigError for values out of range."""
    found = Network() if given.network is None else Network.load(given.network)
    changed: dict[str, Any] = {"latency_s": given.latency, "bandwidth_bytes_per_s": given.bandwidth}
    if given.gradient_bytes is not None:
        changed["messages"] = (given.gradient_bytes,) if given.gradient_bytes else ()
    changed = {name: value for name, value in changed.items() if value is not None}
    try:
        return Network.model_validate({**found.model_dump(), **changed})
    except ValidationError as error:
        raise ConfigError(f"network: {first_fault(error)}") from None


def computed(given: argparse.Namespace) -> tuple[list[dict[str, Any]], float, float]:
    """Return the rows of all policies, world sizes and speeds, and the seconds and processor time that they took."""
    if given.figure is not None:
        check_output(given.figure, True, "speed-up.png")
    network, cost = network_of(given), dict(DISTILBERT)
    if given.calibration is not None:
        cost = {"kind": "calibrated", "path": given.calibration}
        measured = Calibration.load(given.calibration).identity
        if network.identity is not None:
            check_identity(given.network, network.identity, measured, given.force)
    if given.lengths is not None:
        lengths = read_lengths(given.lengths)
    else:
        largest = min(2**20, max(1, given.samples_per_rank) * max(given.world_sizes))
        lengths = sst2_lengths(max(SAMPLES, min(STEPS * largest, MOST_DRAWN)), np.random.default_rng(given.seed))
    begin, used = perf_counter(), process_time()
    rows = [
        asdict(each)
        for share in dict.fromkeys((0.0, given.slow_share))
        for each in what_if(
            lengths, world_sizes=given.world_sizes, samples_per_rank=given.samples_per_rank, policies=given.policies,
            cost=cost, network=network, slow_share=share, slowness=given.slowness, noise=given.noise,
            steps=given.steps, seed=given.seed,
        )
    ]  # fmt: skip
    return rows, perf_counter() - begin, process_time() - used


def from_what(given: argparse.Namespace) -> dict[str, str]:
    """Return the model and device of the calibration, and the network in words."""
    measured, network = Calibration.load(given.calibration).identity, network_of(given)
    rate = f"{network.bandwidth_bytes_per_s / 1e6:,.0f} MB/s, {1e6 * network.latency_s:,.0f} µs a message"
    return {"model": Path(measured.model).name, "device": str(measured.device), "network": rate}


def shown(table: pd.DataFrame, title: str, format_: str) -> Table:
    """Return one share of slow ranks as a table of the terminal: a row a policy, a column a number of ranks."""
    found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    found.add_column("policy", min_width=8)
    for size in table.columns:
        found.add_column(f"G = {size}", justify="right", no_wrap=True)
    for policy, values in table.iterrows():
        found.add_row(str(policy), *(format(value, format_) for value in values))
    return found


def main(words: Sequence[str]) -> int:
    """Print the tables, and write the files; return the exit code."""
    given = parsed(words)

    def body() -> None:
        if given.freeze is not None:
            if given.calibration is None or given.network is None:
                raise ConfigError("--freeze: the report says on what it rests; give --calibration and --network, too")
            check_output(given.freeze, True, "what_if.json")
        rows, seconds, used = computed(given)
        if given.json:
            print(json.dumps(rows, indent=2))
        else:
            console = plain_console()
            speed_up, step_ms = speed_up_table(rows), 1e3 * speed_up_table(rows, "step_s")
            for slow in dict.fromkeys(speed_up.index.get_level_values("slow")):
                console.print(shown(step_ms.loc[slow], f"step ms, {slow}", ".4g"))
                console.print(shown(speed_up.loc[slow], f"static's step time / this one's, {slow}", ".2f"))
            each = f"{len(rows)} times {given.steps:,} steps, {given.samples_per_rank} samples a rank"
            print(f"{each}: {seconds:.1f} s, {used:.1f} s of processor time")
        if given.freeze is not None:
            write_json(given.freeze, from_what(given) | {"rows": rows})
        if given.figure is not None:
            model = given.calibration or "DistilBERT on a core per rank"
            save(draw_speed_up(rows, f"Computed: {model}, {given.samples_per_rank} samples a rank"), given.figure)

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
