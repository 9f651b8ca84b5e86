"""Studies: the product of axes, tables that change keys together, and the words that change them."""

from pathlib import Path

import pytest
from studies import STUDY, write_study

from ddpsched.errors import ConfigError
from ddpsched.planning.policies.minmax import Minmax
from experiments.study import load_study

ROOT = Path(__file__).parents[2]


def test_a_grid_is_the_product_first_axis_fastest(tmp_path: Path) -> None:
    runs = load_study(write_study(tmp_path), ["steps=3"]).runs
    assert [run.name for run in runs] == ["static-seed0", "minmax-seed0", "static-seed1", "minmax-seed1"]
    assert {run.study for run in runs} == {"small"}
    assert {run.steps for run in runs} == {3}
    assert [run.name for run in load_study(write_study(tmp_path), ["seed=1", "policy.kind=minmax"]).runs] == [
        "minmax-seed1"
    ]


def test_an_axis_of_tables_changes_keys_together(tmp_path: Path) -> None:
    text = STUDY.replace("seed = [0, 1]", 'setting = [{ name = "a", world_size = 2 }, { name = "b", world_size = 4 }]')
    runs = load_study(write_study(tmp_path, text)).runs
    assert [(run.name, run.world_size) for run in runs][::2] == [("static-a", 2), ("static-b", 4)]
    assert [run.name for run in load_study(write_study(tmp_path, text), ["setting=b"]).runs] == ["static-b", "minmax-b"]


ARMS = """
[base]
epochs = 1
[[grid.arm]]
name = "static"
policy.kind = "static"
[[grid.arm]]
name = "budget"
policy.kind = "token_budget"
"policy.max_tokens_for_batch" = { long = 900, short = { g2 = 100, g4 = 50 } }
[[grid.arm]]
name = "joined"
"policy.kind" = "static"
"data.max_length" = { long = 448 }
task = "long"
[[grid.task]]
name = "short"
data = { name = "some/short", rows = 7 }
[[grid.task]]
name = "long"
data = { name = "some/long" }
[[grid.ranks]]
name = "g2"
world_size = 2
[[grid.ranks]]
name = "g4"
world_size = 4
"""


def test_a_table_may_depend_on_the_other_axes(tmp_path: Path) -> None:
    runs = {run.name: run for run in load_study(write_study(tmp_path, ARMS)).runs}
    assert list(runs) == [
        f"{arm}-{task}-{ranks}{aa}"
        for ranks in ("g2", "g4")
        for task, arms in (("short", ("static", "budget")), ("long", ("static", "budget", "joined")))
        for arm in arms
        for aa in (("", "-aa") if arm == "static" else ("",))
    ]
    budgets = {name: run.policy.max_tokens_for_batch for name, run in runs.items() if "budget" in name}
    assert list(budgets.values()) == [100, 900, 50, 900]
    assert [run.data.max_length for name, run in runs.items() if "joined" in name] == [448, 448]
    assert {run.data.rows for name, run in runs.items() if "short" in name} == {7}
    assert list(map(str, load_study(write_study(tmp_path, ARMS), ["task=short", "ranks=g2"]).runs)) == [
        str(runs["static-short-g2"]),
        str(runs["static-short-g2-aa"]),
        str(runs["budget-short-g2"]),
    ]


def test_a_word_may_change_one_value_of_an_axis(tmp_path: Path) -> None:
    words = ["short.data.path=DIR/a.tsv", "long.data.path=DIR/b", "data.tokenizer=DIR/t", "g4.executor.threads=2"]
    runs = load_study(write_study(tmp_path, ARMS), words).runs
    assert {run.data.path for run in runs if "short" in run.name} == {"DIR/a.tsv"}
    assert {run.data.path for run in runs if "long" in run.name} == {"DIR/b"}
    assert {(run.data.name, run.data.tokenizer) for run in runs if "long" in run.name} == {("some/long", "DIR/t")}
    assert {run.executor.threads for run in runs if run.world_size == 4} == {2}
    with pytest.raises(ConfigError, match="unknown key shorter"):
        load_study(write_study(tmp_path, ARMS), ["shorter.data.path=DIR/a.tsv"])


def test_a_word_reaches_the_runs_whose_policy_has_that_option(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        "[base]\nsteps = 2\nglobal_batch = 8\n[grid]\narm = [\n"
        '  { name = "s", "policy.kind" = "static" },\n'
        '  { name = "m", "policy.kind" = "minmax", "policy.prefetch" = 9 },\n'
        '  { name = "b", "policy.kind" = "balanced", "data.size" = 60 },\n]\n'
    )
    runs = {run.name: run for run in load_study(path, ["policy.prefetch=12", "data.size=50"]).runs}
    assert list(runs) == ["s", "m", "b"]
    assert runs["m"].policy == Minmax(prefetch=12)
    assert {run.data.size for run in runs.values()} == {50}, "a word wins over a table"
    assert [run.name for run in load_study(path, ["policy.kind=balanced"]).runs] == ["b"]
    with pytest.raises(ConfigError, match=r"policy\.kind = 'packed'; its tables have 'balanced', 'minmax', 'static'"):
        load_study(path, ["policy.kind=packed"])
    with pytest.raises(ConfigError, match="policy: pool_size belongs to kind = 'pool', not 'static'"):
        load_study(path, ["policy.pool_size=4"])


def test_a_table_beside_a_value_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task = 'lnog'; it may name the values \['short', 'long'\] alone"):
        load_study(write_study(tmp_path, ARMS.replace('task = "long"', 'task = "lnog"')))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[grid]", "[gird]"), "tables are"),
        (("seed = [0, 1]", "seed = 0"), "must be a list of values to try$"),
        (('"policy.kind" = ', "policy.kind = "), 'must be a list of .*in quotes, such as "policy.kind" = '),
        (("seed = [0, 1]", "seed = [0, 0]"), "share a name"),
        (("steps = 2", "stesp = 2"), "did you mean steps"),
    ],
)
def test_bad_studies(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_study(write_study(tmp_path, STUDY.replace(*change)))


def test_a_grid_without_a_run_is_refused(tmp_path: Path) -> None:
    arms = 'arm = [{ name = "a", other = "x" }, { name = "c", other = "y" }]\n'
    others = 'other = [{ name = "x", arm = "c" }, { name = "y", arm = "a" }]\n'
    with pytest.raises(ConfigError, match=r"small.toml: \[grid\] makes no run: .* of .*'arm', 'other'"):
        load_study(write_study(tmp_path, STUDY + arms + others))


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("", r"\[grid\] has no axis.*give one a list of values, such as \"policy.kind\" = \["),
        ("[grid]\n", r"\[grid\] has no axis"),
        ("[grid]\nseed = []\n", r"\[grid\] seed = \[\] has no value to try; give it at least one, or leave it out"),
    ],
)
def test_an_empty_grid_is_refused(tmp_path: Path, grid: str, words: str) -> None:
    text = STUDY.partition("[grid]")[0]
    with pytest.raises(ConfigError, match=words):
        load_study(write_study(tmp_path, text + grid))
    also = '[[also]]\nname = "alone"\nseed = 3\n'
    if grid != "[grid]\nseed = []\n":
        assert [run.name for run in load_study(write_study(tmp_path, text + grid + also)).runs] == ["alone"]


def test_committed_studies_are_valid() -> None:
    for path in (ROOT / "experiments").glob("*.toml"):
        assert load_study(path).runs
        assert path.read_text().startswith("# "), f"{path.name} says which question it answers"


@pytest.mark.parametrize("kind", ["{ a = 1 }", "[1]", "7"])
def test_a_kind_that_is_no_name_is_refused_by_its_key(tmp_path: Path, kind: str) -> None:
    """Also where a word is given for another key of the run."""
    text = ARMS.replace('policy.kind = "token_budget"', f"policy.kind = {kind}", 1)
    with pytest.raises(ConfigError, match=r"policy\.kind"):
        load_study(write_study(tmp_path, text), ["data.rows=0"])
