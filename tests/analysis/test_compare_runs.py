"""`ddpsched runs compare`: runs by a link, and simulated ones."""

from pathlib import Path

import pytest
from synthetic import write_run

from analysis.compare_runs import compared
from ddpsched.monitor.commands import print_comparison


def test_a_run_is_compared_by_a_link_to_it_as_well(tmp_path: Path) -> None:
    static, balanced = (write_run(tmp_path / "study", arm, mode="simulated") for arm in ("static", "balanced"))
    link = tmp_path / "elsewhere" / "linked"
    link.parent.mkdir()
    link.symlink_to(balanced)
    assert compared(static, [link]) == compared(static, [balanced])


def test_the_command_compares_simulated_runs_without_an_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    static, balanced = (write_run(tmp_path / "study", arm, mode="simulated") for arm in ("static", "balanced"))
    (table,) = compared(static, [balanced])
    rows = {row["column"]: row for row in table["ratios"]}
    assert rows["step_s"]["ratio"] < 1
    assert (rows["step_s"]["low"], rows["step_s"]["verdict"]) == (None, "no interval: computed times")
    print_comparison(static, [balanced], json=False)
    printed = capsys.readouterr().out
    assert f"{rows['step_s']['ratio']:.3f}" in printed
    assert "times of simulated runs are computed: their ratios have no interval" in " ".join(printed.split())
