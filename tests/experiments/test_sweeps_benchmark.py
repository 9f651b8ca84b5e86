"""The overhead of a sweep is what it takes beside its runs' processes."""

import subprocess
import sys

import pytest

from experiments.benchmarks import sweeps
from experiments.benchmarks.sweeps import Timed, main, measure, report


def test_the_time_of_a_process_is_added_up_until_it_has_been_waited_for() -> None:
    before = Timed.total_s
    process = Timed([sys.executable, "-c", "import time; time.sleep(0.3)"])
    assert process.wait() == 0
    assert 0.3 < Timed.total_s - before < 30


def test_an_overhead_beyond_the_limit_is_named_and_in_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = report({"here": (0.01, 2.0), "local": (1.5, 2.0)})
    assert list(rows.columns[-1].cells) == ["yes", "no"]
    monkeypatch.setattr(sweeps, "measure", lambda runs: {"here": (1.5, 2.0)})
    assert main(["--runs", "3"]) == 1
    with pytest.raises(SystemExit):
        main(["--runs", "0"])


@pytest.mark.slow
def test_a_sweep_of_simulated_runs_costs_less_than_its_limit() -> None:
    found = measure(2)
    for over_s, run_s in found.values():
        assert 0 < over_s < sweeps.LIMIT_S < run_s


def test_what_a_job_imports_can_be_imported() -> None:
    pytest.importorskip("submitit")
    for names in sweeps.IMPORTS:
        subprocess.run([sys.executable, "-c", f"import {names}"], check=True)
