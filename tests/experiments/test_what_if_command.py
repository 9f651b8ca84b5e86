"""`python -m experiments.what_if`: tables, figure, JSON, and values out of range."""

import json
from pathlib import Path

import pytest

from ddpsched.costs.calibration import Identity, Measured
from ddpsched.costs.calibration_grid import calibration_grid
from ddpsched.costs.fit_calibration import fit_calibration
from ddpsched.costs.network import Network
from ddpsched.records import write_json
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


def test_what_the_report_reads_says_on_what_it_rests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = calibration_grid(8, 64, 512)
    points = [
        Measured(
            count=p.count,
            length=p.length,
            held_out=p.held_out,
            seconds=[0.1 + 0.002 * p.count * p.length] * 3,
            peak_bytes=None,
        )
        for p in grid
    ]
    identity = Identity(model="models/distilbert", device="a device", precision="float32", max_length=64)
    write_json(tmp_path / "device.json", fit_calibration(points, identity, {}).model_dump())
    network = Network(latency_s=2e-5, bandwidth_bytes_per_s=1e9, messages=(2.7e8,))
    write_json(tmp_path / "network.json", network.model_dump())
    measured = [*SMALL, "--calibration", str(tmp_path / "device.json")]
    file = tmp_path / "what_if.json"
    assert main([*measured, "--freeze", str(file)]) == 1
    assert "the report says on what it rests; give --calibration and --network" in capsys.readouterr().err
    assert not file.exists()
    assert main([*measured, "--network", str(tmp_path / "network.json"), "--freeze", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["model"], found["device"]) == ("distilbert", "a device")
    assert found["network"] == "1,000 MB/s, 20 µs a message"
    assert {row["world_size"] for row in found["rows"]} == {2, 8}


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
