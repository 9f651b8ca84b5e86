"""The pair test counts steps while both processes work, and reports its finding in a sentence."""

import re
from pathlib import Path

import pytest

from ddpsched.doctor.pair import Product, Rates, Training, Workload
from experiments.benchmarks.pair import cores, main, verdict


@pytest.mark.parametrize(
    "workloads", [(Product(64),), pytest.param((Training("tiny", 2, 8), Product(64)), marks=pytest.mark.slow)], ids=len
)
def test_tiny_workloads(capsys: pytest.CaptureFixture[str], workloads: tuple[Workload, ...]) -> None:
    assert main(["--rounds", "2", "--seconds", "0.3"], workloads) == 0
    printed = capsys.readouterr().out
    for workload in workloads:
        (line,) = (line for line in printed.splitlines() if str(workload) in line and " + " in line)
        assert all(float(number) > 0 for number in re.findall(r"\d+\.\d+", line)), line
        assert f"{workload}: " in printed
    assert len(re.findall(r"slow each other.* \(ratio ", printed)) == len(workloads)
    assert re.search(r"assumed: \d+ processor", printed)
    assert re.search(r"steal: .*; load average before", printed)


def test_options_that_measure_nothing() -> None:
    for words in (["--rounds", "0"], ["--seconds", "0"]):
        with pytest.raises(SystemExit):
            main(words)


def rates(pair: float, same: float = 1.01) -> Rates:
    return Rates([2.0, 2.0], [2.0 * same] * 2, ([2 * pair] * 2, [2 * pair] * 2), [pair, pair])


def test_the_verdict() -> None:
    assert verdict("x", rates(1.0)) == (
        "x: two ranks on this machine do not slow each other (ratio 1.000, 1.000 to 1.000, A/A 1.010, 1.010 to 1.010)"
    )
    assert "two ranks on this machine slow each other (ratio 0.600" in verdict("x", rates(0.6))
    assert "do not slow" in verdict("x", rates(0.97)), "less than is material"
    assert "slow each other by less than 20%, if at all" in verdict("x", rates(0.9, same=1.2))
    disturbed = rates(0.5)
    disturbed.processor_share = 0.6
    assert "no conclusion whether" in verdict("x", disturbed)
    assert "got 60% of a processor" in verdict("x", disturbed)
    assert "two ranks on this machine slow each other (" in verdict("x", rates(0.6, same=1.2)), "far beyond the noise"


def test_siblings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert "/sys does not list" in cores(tmp_path)
    for texts, words in ((("0\n", "1\n"), "lists no two of them"), (("0-1\n", "0-1\n"), "as threads of one core: 0-1")):
        for cpu, text in enumerate(texts):
            folder = tmp_path / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "thread_siblings_list").write_text(text)
        assert words in cores(tmp_path)
