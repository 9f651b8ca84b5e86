"""`python -m experiments.what_if`: tables, figure, JSON, and values out of range."""

import json
from pathlib import Path

import pytest

from experiments.what_if import main

SMALL = ["--world-sizes", "2", "8", "--steps", "2"]


def test_it_prints_both_speeds_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "speed-up.png"
    assert main([*SMALL, "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert out.count("balanced, speeds") == 2
    assert "18 times 2 steps, 8 samples a rank" in out
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_given_network_lengthens_steps(capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for more in ([], ["--gradient-bytes", "1e9", "--bandwidth", "1e9"]):
        assert main([*SMALL, "--slow-share", "0", "--json", *more]) == 0
        rows.append(json.loads(capsys.readouterr().out))
    assert [slow["step_s"] - quick["step_s"] for quick, slow in zip(*rows, strict=True)] == pytest.approx(
        [2 * (row["world_size"] - 1) / row["world_size"] for row in rows[0]]
    )


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--bandwidth", "0"], "network: bandwidth_bytes_per_s = 0.0: input should be greater than or equal to 1"),
        (["--bandwidth=-1e9"], "network: bandwidth_bytes_per_s = -1000000000.0"),
        (["--latency", "-1"], "network: latency_s = -1.0"),
        (["--world-sizes", "100000"], "world_sizes.0 = 100000: input should be less than or equal to 65536"),
        (["--calibration", "none.json"], "calibration none.json: No such file"),
        (["--figure", "/nowhere/figure.png"], "there is no folder /nowhere"),
    ],
)
def test_values_out_of_range(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words]) == 1
    assert fault in capsys.readouterr().err
