"""Every notebook runs as a script in a folder of its own, makes its small data, draws, and ends with its answer."""

import re
import runpy
from pathlib import Path

import pytest
from synthetic import write_arm

from ddpsched import run
from ddpsched.config import parse
from ddpsched.errors import DataError

NOTEBOOKS = Path(__file__).parents[2] / "analysis" / "notebooks"
DRAWN = {
    "first_look": "outputs/notebooks/first-look/figures/first-look.png",
    "compare_policies": "outputs/notebooks-policies/figures/policies.png",
    "calibrate_costs": "outputs/notebooks/calibration.png",
    "more_ranks": "outputs/notebooks/more-ranks.png",
}
ANSWERS = {
    "first_look": r"a step takes \d+(\.\d+)? ms, of which a rank waits \d+%",
    "compare_policies": r"packed is fastest, with 0\.\d\d times static's time for the same work \(simulated ranks\)",
    "calibrate_costs": r"a micro-batch costs \S+ ms.*cost\.path=outputs/notebooks/tiny\.json",
    "more_ranks": r"packed makes steps [2-9]\.\d\d times as fast\. With slow ranks balanced, speeds known does",
}


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs a notebook with these arguments in a temporary folder, and returns its last line."""

    def execute(name: str, *arguments: object) -> str:
        path = NOTEBOOKS / f"{name}.py"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", [str(path), *map(str, arguments)])
        monkeypatch.syspath_prepend("")  # is undone with what the notebook puts before it
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out.splitlines()[-1]

    return execute


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_without_arguments_it_makes_its_own_data(name: str, answer, tmp_path: Path) -> None:
    last = answer(name)
    assert re.match(f"Answer: .*{ANSWERS[name]}", last), last
    assert (tmp_path / DRAWN[name]).read_bytes().startswith(b"\x89PNG")


def small(folder: Path, name: str, policy: str) -> Path:
    table = {"steps": 6, "outputs": str(folder), "study": "mine", "world_size": 2, "global_batch": 8}
    return run(parse({**table, "name": name, "policy": {"kind": policy}, "executor": {"kind": "simulated"}}))


def test_the_fastest_is_told_apart_from_noise(answer, tmp_path: Path) -> None:
    write_arm(tmp_path / "mine", "static", aa=True, steps=20)
    assert answer("compare_policies", tmp_path / "mine") == "Answer: none is told apart from static."
    write_arm(tmp_path / "mine", "balanced", steps=20)
    assert re.search(r"balanced is fastest, with 0\.\d\d", answer("compare_policies", tmp_path / "mine"))


def test_a_run_or_a_study_can_be_named(answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    static, balanced = small(tmp_path, "a", "static"), small(tmp_path, "b", "balanced")
    assert "of which a rank waits" in answer("first_look", static)
    assert (static / "figures" / "first-look.png").exists()
    assert re.search(r"balanced is fastest, with .* times static's", answer("compare_policies", static.parent))
    monkeypatch.setenv("DDPSCHED_RUN", str(balanced))
    answer("first_look")
    assert (balanced / "figures" / "first-look.png").exists()
    with pytest.raises(DataError, match="nowhere: there is no such folder"):
        answer("first_look", tmp_path / "nowhere")


def test_each_asks_one_question_and_lists_its_answer_last() -> None:
    for path in NOTEBOOKS.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "# %% [markdown]\n# # " in text
        if path.stem in DRAWN:
            assert re.search(r"^# # .*\?$", text, re.M), f"{path.name} asks no question"
            assert text.rindex("# ## The answer") > text.rindex("save(")
    assert {path.stem for path in NOTEBOOKS.glob("*.py")} == {*DRAWN, "run"}
