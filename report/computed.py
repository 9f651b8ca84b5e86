"""Sentences on what was computed rather than measured: plans of an epoch, and the simulator."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from analysis.speed_up import speed_up_table
from analysis.speeds import speeds
from report.repeated import repeats_of
from report.results import Measured, Results
from report.sentences import code
from report.wording import duration, listed, number, percent, signed

CLOSE = 0.05  # a mean error of the simulator
RANKS = {"virtual": "virtual ranks", "distributed": "gloo ranks"}


def measured_speed_ups(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return ``policy``, ``world_size``, ``device`` and ``speed_up``, throughput over static's, of each arm.

    ``low`` and ``high`` are its limits. The fewest ranks are first.
    """
    rows = []
    for each in sorted(found, key=lambda each: int(each.table["world_size"])):
        about = {"world_size": int(each.table["world_size"]), "device": each.table["device"]}
        for row in speeds(each.table).to_dict("records"):
            ends = {"low": row["low"], "high": row["high"]}
            rows.append({"policy": _policy(str(row["arm"]), each), "speed_up": row["speed"], **ends, **about})
    return rows


def _policy(arm: str, measured: Measured) -> str:
    """Return an arm's label; where its K is ``minmax``'s default, 2 B / G, it is the ``minmax`` that was computed."""
    default = 2 * int(measured.table["global_batch"]) // int(measured.table["world_size"])
    return "minmax" if arm == f"minmax (K = {default})" else arm


class Computed:
    """Sentences on what was computed or measured beside the studies."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def yardstick(self, arm: str) -> float | None:
        """Return an arm's yardstick over an epoch, or over the steps of the study on virtual ranks."""
        planned = next((row.yardstick for row in self.results.planned_epoch if row.arm == arm), None)
        runs = (row for each in self.results.of("virtual") for row in each.table["arms"] if row["arm"] == arm)
        return planned or next((row["yardstick"] for row in runs), None)

    def simulator_rows(self) -> list[dict[str, Any]]:
        """Return the simulator's errors on held-out steps by the clock, a row a model, kind of ranks and policy."""
        return [row for table in self.results.simulator for row in table["rows"] if row["clock"] == "wall"]

    def simulated_error(self) -> str:
        """Return the mean errors by model and kind of ranks, beside those of A/A."""
        rows = self.simulator_rows()
        if not rows:
            return "How far it is off was not measured."

        def span(values: list[float]) -> str:
            return f"{percent(min(values))} to {percent(max(values))}"

        parts = []
        for model, executor in dict.fromkeys((row["model"], row["executor"]) for row in rows):
            mine = [row for row in rows if (row["model"], row["executor"]) == (model, executor)]
            alone, fitted = (span([row["errors"][way]["mean"] for row in mine]) for way in ("curve", "fixed"))
            again = span([row["again"]["mean"] for row in mine])
            parts.append(f"{model} on {RANKS[executor]} {alone}, fitted {fitted}, A/A {again}")
        machines = listed(list(dict.fromkeys(str(table["machine"]) for table in self.results.simulator)))
        return (
            f"On {machines}, where it was held against real runs, computed step times are off by, on average: "
            f"{'; '.join(parts)}. So it is within 5 % in {self._close('fixed')} cases fitted, and in "
            f"{self._close('curve')} from a calibration alone. Fitted: the cost, its noise, and what a step takes "
            "beside them, to the run's first steps, which a simulation alone cannot know; the way to fit was chosen on "
            "an earlier run than these. A/A: what half the repeats differ by from the rest."
        )

    def _close(self, way: str) -> str:
        """Return in how many cases the mean error of a way to know the cost is at most 5 %."""
        errors = [row["errors"][way]["mean"] for row in self.simulator_rows()]
        return f"{sum(error <= CLOSE for error in errors)} of {len(errors)}"

    @staticmethod
    def repeats(table: dict[str, Any]) -> str:
        """Return how often each model's steps were measured, of a frozen table of the simulator."""
        return "; ".join(
            f"{model}, {times}" for model, times in {row["model"]: row["repeats"] for row in table["rows"]}.items()
        )

    def off_by_more(self) -> str:
        """Return in how many cases the fitted simulator is off by more than 5 % on average."""
        rows = self.simulator_rows()
        off = [row for row in rows if row["errors"]["fixed"]["mean"] > CLOSE]
        return f"{len(off)} of {len(rows)}"

    def about_scaling(self) -> Markup:
        """Return the computed gains of the fewest and the most ranks, and of the number of ranks that gains most."""
        rows = self.results.what_if["rows"]
        table = speed_up_table(rows)
        equal = table.loc[table.index.get_level_values("slow")[0]]
        parts = []
        for arm, row in equal.drop("static").iterrows():
            places = sorted({equal.columns[0], row.idxmax(), equal.columns[-1]})
            parts.append(f"{code(str(arm))} {listed([f'{number(row[ranks])} at {ranks:,}' for ranks in places])} ranks")
        alike = [row for row in rows if not row["slow_share"]]
        most = max(row["world_size"] for row in alike)
        waits = [
            f"{duration(row['network_s'])} of {duration(row['step_s'])} with {code(row['policy'])}"
            for row in alike
            if row["world_size"] == most
        ]
        words = f"Throughput over {code('static')}'s, with ranks of equal speed: {'; '.join(parts)}."
        messages = f"Shorter steps hide less of the exchange: at {most:,} ranks a step waits for it {listed(waits)}."
        return Markup(f"{words} {messages}")

    def beside_measured(self) -> Markup:
        """Return the measured throughputs on virtual ranks by device, with the computed ones in brackets."""
        table = speed_up_table(self.results.what_if["rows"])
        equal = table.loc[table.index.get_level_values("slow")[0]]
        said: dict[str, dict[str, list[str]]] = {}
        off: dict[str, dict[str, list[float]]] = {}
        for row in [*measured_speed_ups(self.results.of("virtual", "scaling")), *self._repeated()]:
            policy, ranks, device = row["policy"], row["world_size"], row["device"]
            if policy in equal.index and policy != "static" and ranks in equal.columns:
                computed = float(equal.at[policy, ranks])
                value = f"{number(row['speed_up'])} ({number(computed)}) at {ranks}"
                said.setdefault(device, {}).setdefault(policy, []).append(value)
                off.setdefault(device, {}).setdefault(policy, []).append(computed / row["speed_up"] - 1)
        if not said:
            return Markup("")
        parts = [
            f"on {device} {'; '.join(f'{code(arm)} {listed(each)} ranks' for arm, each in values.items())}"
            for device, values in said.items()
        ]
        spans = [f"{_span(values)} on {device}" for device, values in off.items()]
        return Markup(
            f"Measured on virtual ranks, with the computed throughput in brackets: {'; '.join(parts)}. What is "
            f"computed, from a calibration on {self.results.what_if['device']}, is off by {listed(spans)}."
        )

    def _repeated(self) -> list[dict[str, Any]]:
        """Return what a repeat of the study on virtual ranks measured, as rows of ``measured_speed_ups``."""
        return [
            {
                "policy": _policy(row["arm"], m), "speed_up": row["ratio"], "world_size": int(m.table["world_size"]),
                "device": listed(each["devices"]),
            }
            for m in self.results.of("virtual")[:1]
            for each in repeats_of("virtual", self.results.reproduced)
            for row in each["throughputs"]
        ]  # fmt: skip


def _span(off: Mapping[str, Sequence[float]]) -> str:
    """Return the least and the largest error, and whose that is which lies farthest from 0."""
    every = [each for some in off.values() for each in some]
    worst = max(off, key=lambda policy: max(map(abs, off[policy])))
    return f"{signed(min(every))} to {signed(max(every))} (farthest with {code(worst)})"


COMPUTED = (
    "simulated_error",
    "simulator_rows",
    "off_by_more",
    "about_scaling",
    "beside_measured",
    "yardstick",
)
