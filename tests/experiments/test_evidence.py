"""The report's studies are valid, compare their arms with static, and shift.toml has data of two laws."""

import json
from pathlib import Path

import pytest

from experiments.evidence.shifted_texts import main
from experiments.launches import launches
from experiments.study import load_study

FILES = sorted((Path(__file__).parents[2] / "experiments" / "evidence").glob("*.toml"))
STUDIES = [path for path in FILES if not path.stem.endswith("-model")]  # those are of one run, to be calibrated


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_five_launches_of_static_twice_and_other_arms(path: Path) -> None:
    study = load_study(path)
    found = [each for each in launches(study) if each.how != "apart"]
    assert len({each.runs[0].seed for each in found}) == 5
    for launch in found:
        assert len(launch.runs) >= 3
        assert sum(run.aa for run in launch.runs) == 1
    steps = {run.seed: run.steps for run in study.runs}
    assert min(steps.values()) >= 60


def test_three_parts_one_after_another(tmp_path: Path) -> None:
    sst2, gsm8k = tmp_path / "train.tsv", tmp_path / "train.jsonl"
    sst2.write_text("sentence\tlabel\n" + "".join(f'a "film {n}\t{n % 2}\n' for n in range(9)))
    gsm8k.write_text("".join(json.dumps({"question": f"{n}?", "answer": f"so\n#### {n}."}) + "\n" for n in range(5)))
    words = [str(tmp_path / "out"), f"--sst2={sst2}", f"--gsm8k={gsm8k}"]
    assert main([*words, "--samples=3"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    assert [row["sentence"] for row in rows] == [
        *(f'a "film {n}' for n in range(3)), *(f"{n}? so\n#### {n}." for n in range(3)),
        *(f'a "film {n}' for n in range(3, 6)),
    ]  # fmt: skip
    assert [row["label"] for row in rows] == [0, 1, 0, 1, 0, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("samples", "file", "message"),
    [
        ("6", "train.tsv", "needs 12 and 6"),
        ("0", "train.tsv", "at least 1"),
        ("1", "none.tsv", "give the files of"),
    ],
)
def test_bad_words(tmp_path: Path, capsys: pytest.CaptureFixture[str], samples: str, file: str, message: str) -> None:
    test_three_parts_one_after_another(tmp_path)
    words = [f"--sst2={tmp_path / file}", f"--gsm8k={tmp_path / 'train.jsonl'}", f"--samples={samples}"]
    assert main([str(tmp_path / "more"), *words]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "more").exists()
