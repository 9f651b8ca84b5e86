"""Runs that `ddpsched runs compare` is given by a link."""

from pathlib import Path

from synthetic import write_run

from analysis.compare_runs import compared


def test_a_run_is_compared_by_a_link_to_it_as_well(tmp_path: Path) -> None:
    static, balanced = (write_run(tmp_path / "study", arm, mode="simulated") for arm in ("static", "balanced"))
    link = tmp_path / "elsewhere" / "linked"
    link.parent.mkdir()
    link.symlink_to(balanced)
    assert compared(static, [link]) == compared(static, [balanced])
