"""The section on GPUs: what was measured stands in it, what failed says why, and a report without any says so."""

from pathlib import Path
from typing import Any

import pytest

from ddpsched.errors import DataError
from ddpsched.records import read_json, write_json
from report import results
from report.build import build_tables, freeze
from report.on_gpu import at_the_set_up, judged, no_gain, over_static, slug
from report.render import tables
from report.results import Results, collect


def arm(name: str, **changed: Any) -> dict[str, Any]:
    """Return an arm's row."""
    row = {
        "arm": name, "chosen": None, "steps": 20, "step_s": 0.02, "tokens_per_s": 1e5, "throughput": 1.0, "low": 0.98,
        "high": 1.03, "mean_step_s": 0.021, "predicted": None, "padding": 1.5, "peak_memory_bytes": 2**30,
        "compiling_s": None, "compile_failed": None, "within_steps": 0,
    }  # fmt: skip
    return row | changed


ARMS = [
    arm("static"), arm("static again", throughput=1.01), arm("balanced", throughput=1.5, predicted=1.9),
    arm("packed", throughput=2.0, predicted=2.1), arm("auto", throughput=1.98, predicted=2.1, chosen="packed"),
    {"arm": "packed by SDPA", "failed": "it ran <out>"},
    arm("token_budget", throughput=3.0),
]  # fmt: skip
SETTING = {"model": "distilbert", "world_size": 4, "global_batch": 2048, "seconds": 30.0}
VERSIONS = {"torch": "2.11", "transformers": "5.17"}
EAGERLY = arm("static, N = 4", compiling_s=31.0, compile_failed="no C++")
IDENTITY = {"precision": "bfloat16", "shape": {"vocab_size": 208}}
MEASURED: dict[str, Any] = {
    "smoke": False, "parts": {
        "device": {"gpu": {"name": "GPU Z9 80GB"}, "cpu": "a processor", "versions": VERSIONS},
        "tests": {"exit_code": 1, "last_line": "6 passed, 1 failed", "failed_tests": ["tests/a.py::b"]},
        "calibration distilbert": {"held_out_mean": 0.031, "identity": IDENTITY},
        "speed distilbert 4 2048": {**SETTING, "arms": ARMS},
        "speed gpt2 4 32": {"failed": "it took more than 120 s"},
        "attention": {"models": {"gpt2": {"cuDNN's attention": {"first_ms": 100.0, "later_ms": 10.0}}}},
        "compiled": {**SETTING, "cut_off_s": 99, "arms": [arm("static"), EAGERLY]},
    },
}  # fmt: skip
for each in MEASURED["parts"].values():
    each |= {"date": "2026-02-03", "commit": "abc1234"}


def test_the_report_shows_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpu", "gpu-smoke"):
        (tmp_path / "outputs" / name).mkdir(parents=True)
    write_json(tmp_path / "outputs" / "gpu" / "gpu.json", MEASURED)
    monkeypatch.setattr(results, "read_gpu", lambda folder: read_json(folder / "gpu.json"))
    write_json(tmp_path / "outputs" / "gpu-smoke" / "gpu.json", MEASURED | {"smoke": True})
    page = build_tables(collect([tmp_path / "outputs" / "gpu"]), tmp_path / "report")
    text = page.with_suffix(".md").read_text()
    assert "### GPU Z9 80GB" in text
    assert "6 passed, 1 failed; failed: tests/a.py::b" in text
    assert "| packed | 20 | 20.0 | 21.0 | 2.00 (0.98 to 1.03) | 2.10 | 1.50 |" in text
    assert "| auto (packed) |" in text
    assert "within 3.1 % on average, in bfloat16 (2026-02-03, code abc1234)." in text
    assert "speed gpt2" not in text
    assert "**gpt2 4 32** was not measured: it took more than 120 s." in text
    assert "ran eagerly: no C++" in text
    assert "Its time was up after 99 s" in text
    assert "| GPT-2's shape with 4 layers, long texts | cuDNN's attention | 100.0 | 10.0 | 10.00 |" in text
    assert "it ran <out>" not in page.read_text()  # escaped
    freeze([tmp_path / "outputs" / "gpu"], tmp_path / "frozen")
    assert read_json(tmp_path / "frozen" / "gpu" / "gpu-z9-80gb" / "gpu.json") == MEASURED
    with pytest.raises(DataError, match="by a trial on a CPU"):
        freeze([tmp_path / "outputs" / "gpu-smoke"], tmp_path / "frozen")
    assert slug(MEASURED) == "gpu-z9-80gb"


def test_a_device_without_a_gain_is_named() -> None:
    arms = ("static", 1.0, 1.0), ("static again", 0.99, 0.9), ("balanced", 1.04, 0.97), ("packed", 0.8, 0.7)
    few = [arm(name, throughput=value, low=low) for name, value, low in arms]
    parts = MEASURED["parts"] | {"speed distilbert 4 32": {**SETTING, "arms": few}}
    assert no_gain({"parts": parts}) == "`balanced` 1.04 and `packed` 0.80"
    few.append(arm("batch_rebalance", throughput=0.9, low=0.8))
    assert no_gain({"parts": parts}) == "`balanced` 1.04, `packed` 0.80 and `batch_rebalance` 0.90"
    for each in few:
        each["low"] = 1.01
    assert no_gain({"parts": parts}) == ""
    assert no_gain(MEASURED) == "", "nothing of 32 samples was measured"


def test_predictions_are_held_against_what_was_measured() -> None:
    words = judged(MEASURED["parts"]["speed distilbert 4 2048"])
    assert "Fastest on static's batches is packed, 2.00 times" in words
    assert "2 of 3 predictions are within 10.0 %" in words
    assert "that of balanced, off by +26.7%" in words
    assert "auto took packed" in words
    few = {"arms": [arm("static"), arm("static again"), arm("balanced", throughput=2.0, steps=2)]}
    assert judged(few) == "Each arm has 2 to 20 steps after the warm-up, too few to conclude from."
    noisy = {"arms": [arm("static"), arm("static again", throughput=1.2), arm("balanced", throughput=1.1)]}
    assert "does not tell from static" in judged(noisy)


def test_the_report_says_what_a_gpu_gains_at_its_own_set_up() -> None:
    arms = [arm("static"), arm("static again", throughput=1.01), arm("balanced", throughput=1.5), arm("packed")]
    parts = {**MEASURED["parts"], "speed distilbert 4 32": {**SETTING, "arms": arms}}
    said = at_the_set_up({"parts": parts})
    assert said.startswith(
        "On GPU Z9 80GB, with DistilBERT's layers, a vocabulary of 208, composed sentences and bfloat16 on four "
        "virtual ranks, the throughput over static's, in one launch of each size and so without an interval, is "
        "`balanced`"
    )
    assert "`balanced` 1.50, `packed` 1.00 and A/A 1.01 at 32" in said
    assert "at 2,048 samples a step" in said
    few = [each | {"steps": 3} for each in arms]
    assert "at 32" not in at_the_set_up({"parts": {**parts, "speed distilbert 4 32": {**SETTING, "arms": few}}})
    assert over_static({"parts": {}}, 32) == {}


def test_a_report_without_a_gpu_says_so() -> None:
    assert "No GPU was measured" in tables(Results(), {}, "t", whole=True)
