"""Planning time of every policy and peer on the traces of BENCHMARKS.md, as Markdown.

    python -m experiments.benchmarks.planning_times DIR [--peer all] [--rounds 8] [--launches 5]

DIR is as for `python -m experiments.benchmarks.yardstick`. Microseconds a sample over an epoch: of a policy, from each
step's ids and lengths to its plan with digest; of a peer, from the epoch's order to its steps. On each trace all arms
run in turn, `balanced, M = 4` twice (A/A), and ratios are to it. Intervals are of launches, each a process, and the
verdicts' family is the arms of all traces. Budgets are searched beforehand. A peer that takes longer than half a second
for an epoch plans the first samples of the trace only, as many as it does in that time.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from analysis.stats import value_interval
from ddpsched.cli import guarded
from ddpsched.compare.arms import MICROBATCHES, Question, arms, fitted
from ddpsched.costs.cost_model import Int
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError, PeerMissing
from ddpsched.exchange import LocalExchange
from ddpsched.peers import PEERS, Problem
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from experiments.benchmarks.bench import AA, Judged, Seconds, add_options, in_turn, judged, launched
from experiments.benchmarks.yardstick import TRACES, Trace, lengths_of, table

FIRST = f"balanced, M = {MICROBATCHES}"  # others are compared with it
AS_STATIC = ("padded to the longest", "static, length_grouped")  # planned as static is
SLOW_S = 0.5  # of a peer's epoch
TRIAL, LEAST_STEPS = 4096, 4  # samples that tell how long a peer takes, and steps that it plans at least
MICRO = 1e6


@dataclass(frozen=True)
class Course:
    """The arms on a trace.

    Attributes:
        lengths: of all samples, in tokens.
        specs: what our policies plan by; the first is ``FIRST``.
        problems: what peers are asked.
    """

    lengths: Int
    specs: Mapping[str, PlanSpec]
    problems: Mapping[str, Problem]

    def measure(self, rounds: int, seed: int) -> Seconds:
        """Return the times in turn, in seconds a sample."""
        ours = {name: partial(plan, spec, self.lengths) for name, spec in self.specs.items()}
        peers = {name: partial(ask, name, problem) for name, problem in self.problems.items()}
        return in_turn({**ours, **peers}, rounds, seed)

    def prefixes(self) -> Iterator[str]:
        """Yield in words which peers plan how many of the samples, where these are not all."""
        for name, problem in self.problems.items():
            if len(problem.lengths) < len(self.lengths):
                yield f"`{name}` the first {len(problem.lengths):,}"


def course(question: Question, peers: Sequence[str]) -> Course:
    """Return the arms on a trace, with budgets. Raises PeerMissing."""
    tables = arms(question, ())
    specs = {name: fitted(question, tables[name]) for name in (FIRST, *tables) if name not in AS_STATIC}
    return Course(question.lengths, specs, {name: short_problem(name, question) for name in peers})


def short_problem(name: str, question: Question) -> Problem:
    """Return what a peer is asked: as many of the first samples as it plans in ``SLOW_S``, in whole steps."""
    least = LEAST_STEPS * question.global_batch
    trial = problem_of(name, question, max(least, TRIAL))
    ask(name, trial)  # imports
    samples = max(least, int(SLOW_S / ask(name, trial)))
    if samples < len(question.lengths):
        samples -= samples % question.global_batch
    return problem_of(name, question, samples)


def problem_of(name: str, question: Question, samples: int) -> Problem:
    """Return what a peer is asked on the first samples of a trace, with its budget."""
    question = replace(question, lengths=question.lengths[:samples])
    spec = question.spec({"policy": {"kind": "static"}})
    return PEERS[name].fitted(
        Problem(
            lengths=question.lengths,
            order=spec.epoch_order(KnownLengths(question.lengths), 0),
            world_size=question.world_size,
            global_batch=question.global_batch,
            max_microbatches=MICROBATCHES,
            cost=spec.cost,
        )
    )


def plan(spec: PlanSpec, lengths: Int) -> float:
    """Return the seconds a sample that our policy takes for an epoch."""
    times = [step.times for step in plan_steps(spec, KnownLengths(lengths), LocalExchange(spec.world_size))]
    return sum((t.offer_s or 0.0) + (t.exchange_s or 0.0) + (t.solve_s or 0.0) for t in times) / len(lengths)


def ask(name: str, problem: Problem) -> float:
    """Return the seconds a sample that a peer takes for an epoch."""
    begin = perf_counter()
    for _ in PEERS[name].steps(problem):
        pass
    return (perf_counter() - begin) / len(problem.lengths)


def measure(courses: Sequence[Course], rounds: int, seed: int) -> list[Seconds]:
    """Return the times on each trace: one launch."""
    return [each.measure(rounds, seed) for each in courses]


def report(traces: Sequence[Trace], launches: Sequence[Sequence[Seconds]]) -> Iterator[str]:
    """Yield the lines of both tables. ``launches``: of each what ``measure`` returned."""
    sections = [list(section) for section in zip(*launches, strict=True)]
    names = [name for name in sections[0][0] if name not in (FIRST, AA)]
    after = names.index("balanced") + 1
    shown = {name: [us(section, name) for section in sections] for name in (*names[:after], FIRST, *names[after:])}
    yield from table(shown, "Planning, microseconds a sample (95 %)", traces)
    found = judged(sections)
    ratios = {name: [cell(each[name]) for each in found] for name in (AA, *names)}
    yield from table(ratios, f"Planning time / that of {FIRST} (95 %)", traces)


def us(section: Sequence[Seconds], name: str) -> str:
    """Return an arm's mean time with its interval, where it has one."""
    mean, low, high = value_interval([each[name] for each in section], np.random.default_rng(0), statistic="mean")
    return f"{MICRO * mean:.2f}" + ("" if np.isnan(low) else f" ({MICRO * low:.2f} to {MICRO * high:.2f})")


def cell(found: Judged) -> str:
    """Return a ratio and its verdict."""
    return f"{found.text} {found.verdict}"


def usable(peers: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the peers that can be used, and the reasons for the others. Raises ConfigError for an unknown one."""
    lengths, missing = np.arange(1, 65), dict[str, str]()
    for name in peers:
        if name not in PEERS:
            raise ConfigError(f"--peer {name}: is none of all, {', '.join(PEERS)}")
        try:
            ask(name, problem_of(name, Question(lengths, 2, 8), len(lengths)))
        except PeerMissing as error:
            missing[name] = error.reason
    return [name for name in peers if name not in missing], missing


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the tables; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.planning_times",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", action="append", default=[], help="a peer's name, or all")
    add_options(parser)
    options = parser.parse_args(words)

    def body() -> None:
        peers, missing = usable(tuple(PEERS) if "all" in options.peer else options.peer)
        lengths = lengths_of(options.folder)
        courses = [course(Question(lengths[name], g, b), peers) for name, g, b in TRACES]
        print("\n".join(report(TRACES, launched(measure, courses, options.rounds, launches=options.launches))))
        for (name, g, b), each in zip(TRACES, courses, strict=True):
            if prefixes := ", ".join(each.prefixes()):
                print(f"\nOf the {len(each.lengths):,} samples of {name}, {g}, {b} planned {prefixes}.")
        for name, reason in missing.items():
            print(f"\n`{name}`: skipped: {reason}")

    return guarded(body)


if __name__ == "__main__":
    raise SystemExit(main())
