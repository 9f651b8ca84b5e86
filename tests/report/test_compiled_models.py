"""The section on compiled models: its table, words and figure follow the frozen rows; without any it says so."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.compiled import AGAIN, DYNAMIC, EAGER, STATIC, with_ratios
from ddpsched.records import write_json
from report.build import build_tables
from report.compiled import padding, pays
from report.render import tables
from report.results import Results, read_compiled

STEPS, LAUNCHES = 20, 3


def row(policy: str, kind: str, ratio: float, shapes: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a stored row whose steps take ``ratio`` of 10 ms, by launch a little more or less."""
    compiled = kind in (DYNAMIC, STATIC)
    rng = np.random.default_rng(len(kind) + (shapes or 0))
    return {
        "policy": policy, "kind": kind, "shapes": shapes, "failed": None, "chosen": None,
        "num_programs": shapes or int(compiled), "compile_s": 20.0 if compiled else None, "num_recompiled": 0,
        "computed_per_real": 2.0, "launches_s": (0.01 * ratio * rng.normal(1, 0.01, (LAUNCHES, STEPS))).tolist(),
    } | more  # fmt: skip


def policy(name: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    machine = {"cpu": "a processor", "cores": 2, "python": "3.12.1", "torch": "2.9.0"}
    base = [row("static", EAGER, 1.0), row("static", AGAIN, 1.0)]
    return {
        "policy": name, "date": "2026-03-04", "machine": machine, "backend": "inductor", "world_size": 4,
        "global_batch": 32, "num_steps": STEPS, "num_launches": LAUNCHES, "start_s": 12.0, "rows": [*base, *rows],
    } | more  # fmt: skip


def study(*policies: dict[str, Any], model: str = "tiny") -> dict[str, Any]:
    return {"model": model, "policies": with_ratios(policies)}


NONE = {**row("balanced", STATIC, 1.0, 1), "failed": "menu needs 2 | more", "launches_s": None}
FAST = row("balanced", STATIC, 0.56, 8, computed_per_real=1.5)
STORED = [
    policy("static", [row("static", DYNAMIC, 1.1), row("static", STATIC, 1.3, 4, computed_per_real=2.5)]),
    policy("balanced", [row("balanced", EAGER, 0.8, computed_per_real=1.2), NONE, FAST]),
]
STUDY = study(*STORED, model="org/tiny")


def test_the_section_with_results_and_without(tmp_path: Path) -> None:
    assert "## Compiled models" not in tables(Results(), {}, "t")
    page = build_tables(Results(compiled=[STUDY]), tmp_path / "report")
    text = page.with_suffix(".md").read_text()
    ratios = r"0.56 \(0.5\d to 0.5\d\) \| 0.70 \(0.\d\d to 0.\d\d\) \|  \| 8,\d00 steps"
    fast = rf"\| balanced \| N = 8 \| 20.0 s \| 0 \| 1.500 \| {ratios}"
    assert re.search(fast, text)
    assert r"| – | failed: menu needs 2 \| more |" in text
    assert (
        "inductor, 4 virtual ranks, B = 32, launches: 3 of 20 steps, a processor, 2 cores, torch 2.9.0, 2026-03-04"
        in text
    )
    assert not re.search(r"\b(None|nan|Undefined)\b", text)
    assert (tmp_path / "report/figures/compiled-tiny.png").exists()
    assert "](figures/compiled-tiny.png)" in text
    assert 'src="data:image/png;base64,' in page.read_text()
    (tmp_path / "compiled").mkdir()
    write_json(tmp_path / "compiled" / "tiny.json", {"model": "org/tiny", "policies": STORED})
    assert read_compiled(tmp_path / "compiled") == [STUDY]


def test_words_follow_the_rows() -> None:
    said = "On a processor, compiling shortens the step of 1 of 3 compiled arms"
    assert said in pays(STUDY)
    assert re.search(
        r"balanced \(N = 8\), 0\.\d+ of the eager step, after 8,[34]00 steps \(\d,\d00 to \d,\d00\)\.", pays(STUDY)
    )
    assert "+25.0 % (N = 4) with static; +25.0 % (N = 8) with balanced" in padding(STUDY)
    slow = study(STORED[0])
    assert "compiling does not pay: none of 2 compiled arms" in pays(slow)
    assert "Nearest is static (dynamic) with 1.1" in pays(slow)
    empty = study(policy("static", []))
    assert "No compiled arm has ended" in pays(empty)
    assert padding(empty) == ""
    stayed = row("auto", STATIC, 1.0, 4, num_programs=0, compile_s=None, chosen="balanced", computed_per_real=1.27)
    eager = study(policy("auto", [row("auto", EAGER, 1.0, computed_per_real=1.26), stayed]))
    assert padding(eager) == "auto took the eager model in each of its arms, so these differ by noise alone."


@pytest.mark.parametrize("name", ["static", "balanced"])
def test_policies_measured_in_other_ways_are_named(name: str) -> None:
    other = study(STORED[0], {**STORED[1], "num_launches": 9})
    text = tables(Results(compiled=[other]), {}, "t")
    assert f"{name}: inductor, 4 virtual ranks" in text
