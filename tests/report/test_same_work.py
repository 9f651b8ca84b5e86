"""Which runs did the work of a frozen study: the same data and model, wherever they lie."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic import write_run

from analysis.load import load_run
from ddpsched.errors import DataError
from report.results import collect
from report.same_work import check_same_work, check_whole

FOUND = {"contents": {"data": "file ab", "tokenizer": "cd"}, "num_samples": 7, "num_parameters": 9}


def results(folder: Path, environment: dict[str, Any], **options: Any) -> Any:
    run = load_run(write_run(folder, "static", steps=4, environment=environment, options=options))
    return SimpleNamespace(measured=[SimpleNamespace(setting=SimpleNamespace(runs=[run]))])


@pytest.mark.parametrize(
    ("changed", "options", "differs"),
    [
        ({}, {"model.name": "nreimers/MiniLM-L6-H384-uncased", "data.tokenizer": "elsewhere"}, None),
        ({"contents": {"data": "datasets ef of 7 rows"}}, {}, None),
        ({"contents": None}, {}, None),
        ({"contents": {"data": "file ef"}}, {}, "content of data = 'file ef' (frozen: 'file ab')"),
        ({"contents": {"data": "file ab", "tokenizer": "ef"}}, {}, "content of tokenizer = 'ef' (frozen: 'cd')"),
        ({"num_samples": 8}, {}, "samples = 8 (frozen: 7)"),
        ({"num_parameters": 8}, {}, "parameters = 8 (frozen: 9)"),
        ({}, {"order.kind": "length_grouped"}, "order.kind = 'length_grouped' (frozen: 'shuffled')"),
        ({}, {"cost.alpha": 50.0}, "cost.alpha = 50.0 (frozen: 0.0)"),
        ({}, {"global_batch": 64}, "global_batch = 64 (frozen: 32)"),
    ],
)
def test_other_work_is_refused(
    tmp_path: Path, changed: dict[str, Any], options: dict[str, Any], differs: str | None
) -> None:
    frozen, fresh = results(tmp_path / "a", FOUND), results(tmp_path / "b", FOUND | changed, **options)
    if differs is None:
        check_same_work(frozen, fresh, tmp_path)
        return
    with pytest.raises(DataError, match=re.escape(f"did other work than the frozen study: {differs}")):
        check_same_work(frozen, fresh, tmp_path)


def test_a_repetition_is_whole_by_its_runs(tmp_path: Path) -> None:
    """Each arm has each seed, not only some arm each of them."""
    for study, left_out in (("frozen", ()), ("part", ("balanced-s1",)), ("long", ())):
        for policy, seed in ((policy, seed) for policy in ("static", "balanced") for seed in (0, 1)):
            if f"{policy}-s{seed}" not in left_out:
                steps = 6 if study == "long" else 4
                write_run(tmp_path / study, policy, seed=seed, steps=steps, name=f"{policy}-s{seed}")
    frozen, part, long = (collect([tmp_path / study]) for study in ("frozen", "part", "long"))
    check_whole(frozen, frozen, tmp_path)
    for name in ("stale", "refitted"):
        options = {"cost.kind": "calibrated", "cost.path": f"outputs/{name}.json"}
        write_run(tmp_path / "shift", "balanced", steps=4, name=f"balanced-{name}", options=options)
    both = collect([tmp_path / "shift"])
    shutil.rmtree(tmp_path / "shift" / "balanced-refitted")
    with pytest.raises(DataError, match=r"not there \(balanced-refitted\); run it whole"):
        check_whole(both, collect([tmp_path / "shift"]), tmp_path)
    check_same_work(frozen, part, tmp_path)
    check_same_work(frozen, long, tmp_path)
    with pytest.raises(DataError, match=r"runs of the frozen study are not there \(balanced-s1\); run it whole"):
        check_whole(frozen, part, tmp_path)
    with pytest.raises(DataError, match=r"not there \(static-s0, static-s1, balanced-s0 and 1 more\); run it whole"):
        check_whole(frozen, long, tmp_path)
