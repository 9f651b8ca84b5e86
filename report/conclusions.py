"""Named conclusions, computed from the records, which a reproduction is compared with.

Each is a plain dict {"id", "setting", "statement", "timed", "holds", "value", "threshold", "verdict"}. ``holds`` is
None where the numbers it needs were not measured, and where launches differ by so much that the value may lie on either
side of the threshold; ``timed`` is False where no clock has a say, so a study run again must give the same;
``verdict`` is the word of ``stats.verdicts`` on a step time, else None. The ids stay the same from one study to the
next, so two studies can be compared.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.settings import AA
from analysis.style import STRONGEST
from report.measures import RIVALS, STRONGEST_PAIRS, Row, against, beyond, mean, p95, peak, time, tracking
from report.results import Measured
from report.shift import LAWS, calibrations, named, refitted_over_stale
from report.wording import JUDGED, with_statics_gradient

Conclusion = dict[str, Any]

# name, column of the ratios, its description
LOWERS = (
    ("compute", "max_compute_s", "the longest compute time"),
    ("step", "step_s", "the step time"),
    ("spread", "std_compute_s", "the spread of compute times"),
)

WAIT_SHARE = 0.01  # of a step
WAIT_P95_S = 300e-6
PROXY_R = 0.9
DRIFT = 0.05  # of the mean length
LOSS_DISTANCE = 0.05  # of the mean loss
MEMORY = 1.05  # of static's peak
# by the end of an id
KINDS = {
    "-proxy": "predicted cost tracks compute time", "-wait-share": "the share of waits for plans",
    "-wait-p95": "the P95 of waits for plans", f"-below-{STRONGEST}": f"shorter steps than {STRONGEST}'s",
    "-p95": "a lower P95 of step times", "-spread": "a lower spread of compute times",
    "-below-flattening": "shorter steps than flattening's",
    **{f"refitted-{law}": "shorter steps with a refitted calibration" for law in LAWS},
    "-below-karmarkar_karp": "shorter steps than karmarkar_karp's",
    "-compute": "a lower longest compute time", "-step": "a lower step time", "-memory": "no more peak memory",
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """A statement that holds where ``value`` lies below ``threshold``, or ``above`` it."""

    name: str
    statement: str
    value: float | None
    threshold: float
    above: bool = False
    timed: bool = True
    verdict: str | None = None
    undecided: bool = False

    @classmethod
    def of_mean(cls, name: str, statement: str, found: Row, threshold: float) -> "Claim":
        """Return a claim on a mean over launches, undecided where its interval holds the threshold or is not there."""
        low, high = found.get("low"), found.get("high")
        undecided = low is None or high is None or low <= threshold <= high
        return cls(name, statement, found["ratio"], threshold, undecided=undecided)


def conclusions(measured: Sequence[Measured]) -> list[Conclusion]:
    """Return the conclusions of all settings, in order."""
    return [judged(each, claim) for each in measured for claim in _claims(each)]


def failed(found: Sequence[Conclusion]) -> dict[str, int]:
    """Return how many conclusions of each kind do not hold, the most frequent first."""
    names = [c["id"].partition("@")[0] for c in found if c["holds"] is False]
    kinds = [next((kind for end, kind in KINDS.items() if name.endswith(end)), "others") for name in names]
    return dict(Counter(kinds).most_common())


def undecided(found: Sequence[Conclusion]) -> list[Conclusion]:
    """Return the conclusions that were measured, on launches that differ by too much to say."""
    return [c for c in found if c["holds"] is None and c["value"] is not None]


def judged(measured: Measured, claim: Claim) -> Conclusion:
    """Return the conclusion of a claim: its value compared with its threshold."""
    holds = None
    if claim.value is not None and not claim.undecided:
        holds = bool(claim.value > claim.threshold if claim.above else claim.value < claim.threshold)
    study = measured.setting.runs[0].study  # as its runs name it, whatever its folder is called now
    return {
        "id": f"{claim.name}@{measured.table['slug'].removeprefix(f'{study}-')}",
        "setting": measured.name,
        "statement": named(claim.statement) if calibrations(measured) else claim.statement,
        "timed": claim.timed,
        "holds": holds,
        "value": claim.value,
        "threshold": claim.threshold,
        "verdict": claim.verdict,
    }


def _claims(m: Measured) -> Iterator[Claim]:
    arms = {row["arm"]: row for row in m.table["arms"] if row["arm"] != AA}
    simulated = m.table["mode"] == "simulated"
    base = m.table["baseline"]
    for arm, row in arms.items():
        if arm == base:
            continue
        if base:
            yield Claim(
                f"{arm}-padded", f"{arm} lowers the largest rank's padded tokens against {base}",
                time(m, arm, "max_padded_tokens").get("high"), 1.0, timed=False,
            )  # fmt: skip
        drift = row["length_drift"]
        statement = f"{arm}: samples of the same mean length early and late (within 5 %)"
        yield Claim(f"{arm}-drift", statement, None if drift is None else abs(drift), DRIFT, timed=False)
        if not simulated:
            yield from _measured(m, arm)
    if simulated:
        return
    if base in arms:
        statement = f"{base}: predicted cost tracks compute time (lower end of r above 0.9)"
        yield Claim(f"{base}-proxy", statement, tracking(m, base).get("low"), PROXY_R, above=True)
    yield from _between_arms(m, arms)


def _measured(m: Measured, arm: str) -> Iterator[Claim]:
    """Yield the claims on an arm's times and memory."""
    base = m.table["baseline"]
    if base and m.is_timed:
        for key, column, what in LOWERS:
            found = time(m, arm, column)
            floor = None if found.get("verdict") else time(m, AA, column)
            yield claim_of_less(m, f"{arm}-{key}", f"{arm} lowers {what} against {base}", found, floor)
        yield claim_of_less(
            m, f"{arm}-p95", f"{arm} lowers the P95 of step times against {base}", p95(m, arm), p95(m, AA)
        )
    statement = f"{arm}: plans are waited for under 1 % of the time"
    yield Claim.of_mean(f"{arm}-wait-share", statement, mean(m, arm, "plan_wait_share"), WAIT_SHARE)
    statement = f"{arm}: P95 of the wait for a plan is under 300 µs"
    yield Claim.of_mean(f"{arm}-wait-p95", statement, mean(m, arm, "plan_wait_p95_s"), WAIT_P95_S)
    if base and m.apart:  # in a process of several arms the peak is that of the largest of them
        statement = f"{arm}: no more peak memory than {base} (upper end within 5 %)"
        yield Claim(f"{arm}-memory", statement, peak(m, arm)["high"], MEMORY)


def _between_arms(m: Measured, arms: dict[str, dict[str, Any]]) -> Iterator[Claim]:
    if "static" in arms and (same := with_statics_gradient(arms)):
        distance = arms[same].get("loss_distance_early")
        statement = f"{same} starts with static's losses (first 10 steps, within 5 %)"
        yield Claim("balanced-loss", statement, distance, LOSS_DISTANCE, timed=False)
    pairs = [*STRONGEST_PAIRS, *RIVALS]
    pairs += [("balanced", "minmax"), ("balanced (online)", "balanced")]
    for arm, other in pairs:
        if m.is_timed and arm in arms and other in arms:
            statement = f"{arm} lowers the step time against {other}"
            yield claim_of_less(m, f"{arm}-below-{other}", statement, against(m, arm, other), time(m, AA))
    if calibrations(m):
        for law in LAWS:
            statement = f"a refitted calibration lowers the step time, {law}"
            yield claim_of_less(m, f"refitted-{law}", statement, refitted_over_stale(m, law), time(m, AA))


def claim_of_less(m: Measured, name: str, statement: str, row: Row, floor: Row | None = None) -> Claim:
    """Return the claim that a ratio of times is below 1, by the upper end of its interval; not measured without one.

    A difference that noise could make does not count, so within that of A/A the value is 1 or more: that is the row's
    own verdict, or its ``floor`` where it has none. Of arms that did not take turns such a claim is undecided, as what
    each met alone stays in its time.
    """
    high: float | None = row.get("high")
    if high is None or (floor is not None and floor.get("low") is None):
        return Claim(name, statement, None, 1.0, verdict=row.get("verdict"))
    noise = not beyond(row, floor) if floor is not None else row.get("verdict") not in JUDGED
    at_least = max(1.0, high) if noise or row.get("verdict") == "slower" else high
    return Claim(name, statement, at_least, 1.0, verdict=row.get("verdict"), undecided=noise and m.apart)
