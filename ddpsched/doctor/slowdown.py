"""Whether two processes on this machine slow each other down: one trains a small model alone, then two do at once."""

import statistics

from ddpsched.doctor.finding import Finding, Setting
from ddpsched.doctor.pair import Rates, Training, conclude, measure, noise, spread

NAME = "two processes"
WORKLOAD = Training("nreimers/MiniLM-L6-H384-uncased")  # 22 million parameters, more than caches hold
ROUNDS, SECONDS = 2, 1.0


def check(_: Setting) -> list[Finding]:
    """Return the finding on two processes at once."""
    return [judge(measure(WORKLOAD, ROUNDS, SECONDS))]


def judge(rates: Rates) -> Finding:
    """Return the finding."""
    figures = f"each of two works {statistics.mean(rates.ratios):.2f} times as fast as one alone (one alone twice: "
    figures += f"{spread(rates.same)})"
    numbers = {"pair_over_alone": statistics.mean(rates.ratios), "noise": noise(rates)}
    conclusion = conclude(rates)
    if conclusion == "slower":
        remedy = (
            "times of ranks here are not those of ranks with a machine each: measure with executor.kind=virtual, or "
            "start fewer ranks than processors"
        )
        return Finding(NAME, "warn", f"{figures}: they slow each other", remedy, numbers)
    if conclusion == "disturbed":
        says = f"{figures}, but other programs ran: one of two got {rates.processor_share:.0%} of a processor"
        return Finding(NAME, "warn", says, "end other programs and run this again before times are measured", numbers)
    if conclusion == "unclear":
        says = f"{figures}: one alone is not equally fast twice, so that less than {noise(rates):.0%} cannot be seen"
        remedy = "for a smaller bound run python -m experiments.benchmarks.pair while the machine is quiet"
        return Finding(NAME, "warn", says, remedy, numbers)
    return Finding(NAME, "ok", f"{figures}: they do not slow each other", numbers=numbers)
