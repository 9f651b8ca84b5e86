"""Sentences on what was computed rather than measured: plans of an epoch, and the simulator."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from analysis.speed_up import speed_up_table
from analysis.speeds import speeds
from report.results import Measured, Results
from report.sentences import code
from report.wording import duration, listed, number, percent, signed

RANKS = {"virtual": "virtual ranks", "distributed": "gloo ranks"}


def measured_speed_ups(found: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return ``policy``, ``world_size`` and ``speed_up`` of each arm, fewest ranks first: throughput over static's.

    An arm whose K is ``minmax``'s default, 2 B / G, is the ``minmax`` that was computed.
    """
    rows = []
    for each in sorted(found, key=lambda each: int(each.table["world_size"])):
        ranks = int(each.table["world_size"])
        default = f"minmax (K = {2 * int(each.table['global_batch']) // ranks})"
        for row in speeds(each.table).to_dict("records"):
            policy = "minmax" if row["arm"] == default else str(row["arm"])
            rows.append({"policy": policy, "world_size": ranks, "speed_up": row["speed"]})
    return rows


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
            f"{'; '.join(parts)}. Fitted: the cost, its noise, and what a step takes beside them, to the run's first "
            "steps, which a simulation alone cannot know; the way to fit was chosen on an earlier run than these. A/A: "
            "what half the repeats differ by from the rest."
        )

    @staticmethod
    def repeats(table: dict[str, Any]) -> str:
        """Return how often each model's steps were measured, of a frozen table of the simulator."""
        return "; ".join(
            f"{model}, {times}" for model, times in {row["model"]: row["repeats"] for row in table["rows"]}.items()
        )

    def off_by_more(self) -> str:
        """Return in how many cases the fitted simulator is off by more than 5 % on average."""
        rows = self.simulator_rows()
        off = [row for row in rows if row["errors"]["fixed"]["mean"] > 0.05]
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
        """Return the measured throughputs on virtual ranks, with the computed ones in brackets."""
        table = speed_up_table(self.results.what_if["rows"])
        equal = table.loc[table.index.get_level_values("slow")[0]]
        values: dict[str, list[str]] = {}
        over: dict[str, list[float]] = {}
        for row in measured_speed_ups(self.results.of("virtual", "scaling")):
            policy, ranks = row["policy"], row["world_size"]
            if policy in equal.index and policy != "static" and ranks in equal.columns:
                value = f"{number(row['speed_up'])} ({number(equal.at[policy, ranks])}) at {ranks}"
                values.setdefault(policy, []).append(value)
                over.setdefault(policy, []).append(float(equal.at[policy, ranks]) / row["speed_up"] - 1)
        if not values:
            return Markup("")
        parts = "; ".join(f"{code(arm)} {listed(each)} ranks" for arm, each in values.items())
        said = f"Measured on virtual ranks, with the computed throughput in brackets: {parts}."
        every = [each for some in over.values() for each in some]
        worst = code(max(over, key=lambda policy: max(map(abs, over[policy]))))
        span = f"{signed(min(every))} to {signed(max(every))}"
        said += f" What is computed is off by {span}, farthest with {worst}."
        return Markup(said)


COMPUTED = (
    "simulated_error",
    "simulator_rows",
    "off_by_more",
    "about_scaling",
    "beside_measured",
    "yardstick",
)
