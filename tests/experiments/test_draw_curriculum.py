"""The figure of report/notes/curriculum.md: four real ranks sort, two orders are planned, six panels are drawn."""

from pathlib import Path

import numpy as np
import pytest

from experiments.batches import FIGURES
from experiments.curriculum import LENGTHS, Panels, figure, imbalance, main, panels


@pytest.fixture(scope="module")
def found() -> Panels:
    return panels()


@pytest.mark.slow
def test_what_is_drawn(found: Panels) -> None:
    tables = (found.assigned, found.local, found.slices, found.dealt)
    assert all(sorted(length for rank in table for length in rank) == sorted(LENGTHS) for table in tables)
    assert found.local == [sorted(rank) for rank in found.assigned]
    assert found.slices == np.arange(1, 17).reshape(4, 4).tolist()
    assert found.dealt == np.arange(1, 17).reshape(4, 4).T.tolist()


def test_what_the_page_says_of_it(found: Panels) -> None:
    page = (FIGURES.parent / "curriculum.md").read_text(encoding="utf-8")
    assert f"{imbalance(found.local):.2f}\ntimes an even share (c)" in page
    assert f"dealt in turn (e): {imbalance(found.dealt):.2f} (f)" in page


@pytest.mark.slow
def test_what_depends_on_the_number_of_ranks(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's table equals the command's output."""
    main([str(data_dir)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "curriculum" in line]
    assert len(rows) == 12
    page = (FIGURES.parent / "curriculum.md").read_text(encoding="utf-8")
    for row in rows:
        *data, kind, size, largest, same = row
        assert f"| {' '.join(data)} | `{kind}` | {size} | {largest} | {same} |" in page


def test_it_is_drawn(found: Panels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.curriculum.panels", lambda: found)
    main(["--output", str(tmp_path)])
    assert (tmp_path / "curriculum.png").stat().st_size > 5000
    assert (FIGURES / "curriculum.png").exists()
    titles = [axes.get_title(loc="left") for axes in figure(found).axes]
    assert [title[0] for title in titles] == list("abcdef")
