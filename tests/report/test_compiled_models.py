"""The section on compiled models: its table, words and figure follow the frozen rows; without any it says so."""

import re
from pathlib import Path
from typing import Any

import pytest

from analysis.compiled import AGAIN, DYNAMIC, EAGER, STATIC
from ddpsched.records import write_json
from report.build import build_tables
from report.compiled import padding, pays
from report.render import tables
from report.results import Results, read_tables


def row(policy: str, kind: str, ratio: float, shapes: int | None = None, **more: Any) -> dict[str, Any]:
    near = {"ratio": ratio, "low": ratio - 0.02, "high": ratio + 0.02}
    compiled = kind in (DYNAMIC, STATIC)
    return {
        "policy": policy, "kind": kind, "shapes": shapes, "failed": None, "chosen": None,
        "num_programs": shapes or int(compiled), "compile_s": 20.0 if compiled else None, "num_recompiled": 0,
        "computed_per_real": 2.0, "step_s": 0.01 * ratio, "to_static": near, "to_eager": near,
        "to_dynamic": near if compiled else None, "step_is": "slower" if compiled else None, "break_even_steps": None,
    } | more  # fmt: skip


def launch(policy: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    machine = {"cpu": "a processor", "cores": 2, "python": "3.12.1", "torch": "2.9.0"}
    base = [row("static", EAGER, 1.0), row("static", AGAIN, 1.01)]
    return {
        "policy": policy, "date": "2026-03-04", "machine": machine, "backend": "inductor", "world_size": 4,
        "global_batch": 32, "num_steps": 600, "warm_up": 0.1, "start_s": 12.0, "rows": [*base, *rows],
    } | more  # fmt: skip


NONE = {**row("balanced", STATIC, 1.0, 1), "failed": "menu needs 2 | more", "to_static": None, "to_eager": None}
FAST = row("balanced", STATIC, 0.7, 8, step_is="faster", break_even_steps=6666.7, computed_per_real=1.5)
STUDY = {
    "model": "org/tiny",
    "launches": [
        launch("static", [row("static", DYNAMIC, 1.1), row("static", STATIC, 1.3, 4, computed_per_real=2.5)]),
        launch("balanced", [row("balanced", EAGER, 0.8, computed_per_real=1.2), {**NONE, "step_is": None}, FAST]),
    ],
}


def test_the_section_with_results_and_without(tmp_path: Path) -> None:
    assert "## Compiled models" not in tables(Results(), {}, "t")
    page = build_tables(Results(compiled=[STUDY]), tmp_path / "report")
    text = page.with_suffix(".md").read_text()
    assert "| balanced | N = 8 | 20.0 s | 0 | 1.500 | 0.70 (0.68 to 0.72) | 0.700 | 0.700 | 6,700 steps |" in text
    assert r"| – | failed: menu needs 2 \| more |" in text
    assert "inductor, 4 virtual ranks, B = 32, 600 steps, a processor, 2 cores, torch 2.9.0, 2026-03-04" in text
    assert not re.search(r"\b(None|nan|Undefined)\b", text)
    assert (tmp_path / "report/figures/compiled-tiny.png").exists()
    assert "](figures/compiled-tiny.png)" in text
    assert 'src="data:image/png;base64,' in page.read_text()
    (tmp_path / "compiled").mkdir()
    write_json(tmp_path / "compiled" / "tiny.json", STUDY)
    assert read_tables(tmp_path / "compiled") == [STUDY]


def test_words_follow_the_rows() -> None:
    said = "On a processor, in one launch of each policy, compiling shortens the step of 1 of 3 compiled arms"
    assert said in pays(STUDY)
    assert "balanced (N = 8), 0.700 of the eager step, after 6,700 steps." in pays(STUDY)
    assert "+25.0 % (N = 4) with static; +25.0 % (N = 8) with balanced" in padding(STUDY)
    slow = {"model": "tiny", "launches": STUDY["launches"][:1]}
    assert "compiling does not pay: none of 2 compiled arms" in pays(slow)
    assert "Nearest is static (dynamic) with 1.100 of it." in pays(slow)
    empty = {"model": "tiny", "launches": [launch("static", [])]}
    assert "No compiled arm has ended" in pays(empty)
    assert padding(empty) == ""
    stayed = row("auto", STATIC, 1.0, 4, num_programs=0, compile_s=None, chosen="balanced", computed_per_real=1.27)
    eager = {"model": "tiny", "launches": [launch("auto", [row("auto", EAGER, 1.0, computed_per_real=1.26), stayed])]}
    assert padding(eager) == "auto took the eager model in each of its arms, so these differ by noise alone."


@pytest.mark.parametrize("name", ["static", "balanced"])
def test_launches_measured_in_other_ways_are_named(name: str) -> None:
    other = {**STUDY, "launches": [STUDY["launches"][0], {**STUDY["launches"][1], "num_steps": 9}]}
    text = tables(Results(compiled=[other]), {}, "t")
    assert f"{name}: inductor, 4 virtual ranks" in text
