"""Sentences on what was computed rather than measured: plans of an epoch, and the simulator."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from analysis.speed_up import speed_up_table
from analysis.speeds import speeds
from report.repeated import repeats_of
from report.results import Measured, Results
from report.sentences import code
from report.wording import duration, listed, number, percent, processor, signed

CLOSE = 0.05  # a mean error of the simulator
RANKS = {"virtual": "virtual ranks", "distributed": "gloo ranks"}


def measured_speed_ups(results: Results) -> list[dict[str, Any]]:
    """Return ``policy``, ``world_size``, ``device`` and ``speed_up``, throughput over static's, of each arm.

    ``low`` and ``high`` are its limits. The fewest ranks are first; repeats, on a device that may be another, are last.
    """
    found = sorted(results.of("virtual", "scaling"), key=lambda each: int(each.table["world_size"]))
    rows = [
        _speed_up(each, row["arm"], row["speed"], row, each.table["device"])
        for each in found
        for _, row in speeds(each.table).iterrows()
    ]
    again = [
        _speed_up(each, row["arm"], row["ratio"], row, listed(repeat["devices"]))
        for each in results.of("virtual")[:1]
        for repeat in repeats_of("virtual", results.reproduced)
        for row in repeat["throughputs"]
    ]
    return rows + again


def _speed_up(m: Measured, arm: str, value: float, limits: Any, device: str) -> dict[str, Any]:
    about = {"policy": _policy(arm, m), "world_size": int(m.table["world_size"]), "device": device}
    return about | {"speed_up": value, "low": limits["low"], "high": limits["high"]}


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

    def simulated_errors(self) -> list[list[str]]:
        """Return the mean errors as cells, a row for each model and kind of ranks: as computed, fitted, and of A/A."""
        rows = self.simulator_rows()
        found = []
        for model, executor in dict.fromkeys((row["model"], row["executor"]) for row in rows):
            mine = [row for row in rows if (row["model"], row["executor"]) == (model, executor)]
            errors = [[row["errors"][way]["mean"] for row in mine] for way in ("curve", "fixed")]
            errors.append([row["again"]["mean"] for row in mine])
            spans = [f"{percent(min(each))} to {percent(max(each))}" for each in errors]
            found.append([f"{model}, {RANKS[executor]}", *spans])
        return found

    def about_errors(self) -> str:
        """Return in how many cases the simulator is close, and what it is fitted to."""
        return (
            f"So it is within 5 % in {self._close('curve')} cases from a calibration and a network, and in "
            f"{self._close('fixed')} fitted. Fitted, the first steps of the run replace both: the calibration by the "
            "cost and the noise of these steps, the network by what they take beside it. Before a run nobody knows "
            "that. How to fit, and to measure a step by the mean of the middle half of its repeats, was chosen on an "
            "earlier run. A/A: what half the repeats differ by from the rest, which is about twice the noise that the "
            "measured steps have left."
        )

    def held_on(self) -> str:
        """Return the machines on which the simulator was held against real runs."""
        return listed(list(dict.fromkeys(processor(str(table["machine"])) for table in self.results.simulator)))

    def _close(self, way: str) -> str:
        """Return in how many cases the mean error of a way to know the cost is at most 5 %."""
        errors = self._errors(way)
        return f"{sum(error <= CLOSE for error in errors)} of {len(errors)}"

    def _errors(self, way: str) -> list[float]:
        return [row["errors"][way]["mean"] for row in self.simulator_rows()]

    @staticmethod
    def repeats(table: dict[str, Any]) -> str:
        """Return how often each model's steps were measured, of a frozen table of the simulator."""
        return "; ".join(
            f"{model}, {times}" for model, times in {row["model"]: row["repeats"] for row in table["rows"]}.items()
        )

    def off_by_more(self) -> str:
        """Return in how many cases the simulator is off by more than 5 % on average, fitted and from a calibration."""
        fitted, alone = (self._errors(way) for way in ("fixed", "curve"))
        return (
            f"here {sum(error > CLOSE for error in fitted)} of {len(fitted)} cases. From a calibration and a network "
            f"alone they already are in {sum(error > CLOSE for error in alone)} of {len(alone)}, by "
            f"{percent(min(alone), 0)} to {percent(max(alone), 0)}"
        )

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

    def beside_measured(self) -> list[list[str]]:
        """Return the measured throughputs on virtual ranks as cells, with the computed ones in brackets.

        A row for each number of ranks and device: these, then the policies in the order of ``measured_policies``.
        """
        places: dict[tuple[int, str], dict[str, str]] = {}
        for row, computed in self._both():
            value = f"{number(row['speed_up'])} ({number(computed)})"
            places.setdefault((row["world_size"], processor(row["device"])), {})[row["policy"]] = value
        return [
            [f"{ranks}, {device}", *(found.get(policy, "–") for policy in self.measured_policies())]
            for (ranks, device), found in sorted(places.items())
        ]

    def measured_policies(self) -> list[str]:
        """Return the policies that were both computed and measured."""
        return list(dict.fromkeys(row["policy"] for row, _ in self._both()))

    def off_by(self) -> Markup:
        """Return the least and the largest error of what is computed, on each device on which it was measured."""
        off: dict[str, dict[str, list[float]]] = {}
        for row, computed in self._both():
            errors = off.setdefault(processor(row["device"]), {}).setdefault(row["policy"], [])
            errors.append(computed / row["speed_up"] - 1)
        spans = [f"{_span(values)} on {device}" for device, values in off.items()]
        every = [each for values in off.values() for errors in values.values() for each in errors]
        more = min(every) > -CLOSE and max(every) > CLOSE
        promise = f" The curves promise too much where this is more than {percent(CLOSE, 0)}." if more else ""
        device = processor(self.results.what_if["device"])
        return Markup(f"Computed from a calibration on {device}, the throughput is off by {listed(spans)}.{promise}")

    def _both(self) -> list[tuple[dict[str, Any], float]]:
        """Return each measured throughput of a policy that was computed for as many ranks, with what was computed."""
        table = speed_up_table(self.results.what_if["rows"])
        equal = table.loc[table.index.get_level_values("slow")[0]].drop("static")
        return [
            (row, float(equal.at[row["policy"], row["world_size"]]))
            for row in measured_speed_ups(self.results)
            if row["policy"] in equal.index and row["world_size"] in equal.columns
        ]


def _span(off: Mapping[str, Sequence[float]]) -> str:
    """Return the least and the largest error, and whose that is which lies farthest from 0."""
    every = [each for some in off.values() for each in some]
    worst = max(off, key=lambda policy: max(map(abs, off[policy])))
    return f"{signed(min(every))} to {signed(max(every))} (farthest with {code(worst)})"


COMPUTED = (
    "simulated_errors",
    "about_errors",
    "held_on",
    "simulator_rows",
    "off_by_more",
    "about_scaling",
    "beside_measured",
    "measured_policies",
    "off_by",
    "yardstick",
)
