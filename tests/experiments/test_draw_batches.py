"""The figure of report/notes/token_budget.md shows the plans; the table has a line for each arm."""

from pathlib import Path

import numpy as np
import pytest

from ddpsched.compare import Question
from ddpsched.compare.arms import fitted, measure
from ddpsched.data.embedded.length_histogram import sst2_lengths
from experiments import batches
from experiments.batches import ARMS, BUDGET, FIGURES, LENGTHS, SHAPES, drawn, first_step, main


@pytest.mark.parametrize("title", SHAPES)
def test_every_sample_is_drawn_once(title: str) -> None:
    found = list(drawn(first_step(**SHAPES[title])))
    assert [(each.rank, each.turn) for each in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert sorted(length for each in found for length in each.lengths) == sorted(LENGTHS)
    for each in found:
        assert each.padded <= BUDGET
        assert max(each.lengths, default=0) <= each.width
        assert each.words == "no micro-batch" or f"= {each.padded} tokens" in each.words


def test_what_the_page_says_of_it() -> None:
    plain, shaped = (list(drawn(first_step(**policy))) for policy in SHAPES.values())
    assert [len(each.lengths) for each in plain] == [10, 2, 4, 0], "three micro-batches are enough"
    assert {(len(each.lengths), each.width) for each in shaped} == {(4, 7)}
    assert [sum(each.padded for each in drawing) for drawing in (plain, shaped)] == [72, 112]


def test_it_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--output", str(tmp_path)])
    path = tmp_path / "token_budget.png"
    assert capsys.readouterr().out.strip() == str(path)
    assert path.stat().st_size > 5000
    assert (FIGURES / path.name).exists()
    shown = [text.get_text() for text in batches.figure().axes[0].texts]
    for words in ("plain: 66 of 72 tokens are real", "rank 1", "micro-batch 2", "no micro-batch", "18 padding"):
        assert any(words in text for text in shown), words


def test_every_arm_can_be_planned() -> None:
    question = Question(sst2_lengths(1000, np.random.default_rng(0)), 4, 32)
    for name, arm in ARMS.items():
        figures = measure(question, name, fitted(question, arm)).figures
        assert figures is not None
        assert (figures.dropped > 0) == ("replacement" in name), name


def test_the_table_is_printed(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ARMS", {name: ARMS[name] for name in ("bins", "bins, replacement")})
    main([str(data_dir), "--trace", "GSM8K"])
    text = capsys.readouterr().out
    assert "GSM8K: 7,473 samples; G = 4, B = 32, seed 0" in text
    assert "bins, replacement" in text
