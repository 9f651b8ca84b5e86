"""The pages of report/notes: one for each policy and order, configs that run, numbers as commands print them."""

import doctest
import json
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from analysis.metrics import warmup_steps
from ddpsched.compare import Question, compare
from ddpsched.compare.arms import Row, fitted, measure
from ddpsched.compare.show import COLUMNS
from ddpsched.config import CompileConfig, LrConfig, ModelConfig, RunConfig, parse
from ddpsched.data.config import DataConfig
from ddpsched.orders.config import OrderConfig
from ddpsched.planning.policies import POLICIES
from ddpsched.run_loop import run
from experiments.batches import ARMS, lengths_of

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "report" / "notes"
PAGES = sorted(NOTES.glob("*.md"))
KINDS = {kind: policy for kind, policy in POLICIES.items() if kind != "peer"}
ORDERS = get_args(OrderConfig.model_fields["kind"].annotation)
TABLES: dict[str, Any] = {
    "lr": LrConfig,
    "order": OrderConfig,
    "data": DataConfig,
    "model": ModelConfig,
    "compile": CompileConfig,
}


def text_of(name: str) -> str:
    return (NOTES / f"{name}.md").read_text(encoding="utf-8")


def tomls() -> list[tuple[str, dict[str, Any]]]:
    """Every TOML block and the page it is on."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            found.append((page.stem, tomllib.loads(block)))
    return found


CONFIGS = [pytest.param(page, values, id=f"{page}-{number}") for number, (page, values) in enumerate(tomls())]


def test_every_policy_has_its_page_and_a_config_on_it() -> None:
    for kind in KINDS:
        assert text_of(kind).startswith(f"# {kind}: "), kind
        assert any(page == kind and values["policy"]["kind"] == kind for page, values in tomls()), kind


def test_every_order_is_on_its_page() -> None:
    page = text_of("orders")
    for kind in ORDERS:
        assert re.search(rf"^## {kind}$", page, re.M), kind


@pytest.mark.parametrize("index", ["README.md", "report/notes/README.md"])
def test_the_indices_link_every_policy(index: str) -> None:
    text = (ROOT / index).read_text(encoding="utf-8")
    before = "" if index.startswith("report") else "report/notes/"
    for name in [*KINDS, "orders", "concatenate", "masks"]:
        assert f"({before}{name}.md)" in text, name
    if before:
        for key in KINDS:
            assert re.search(rf"^\| \[`{key}`\]\({before}", text, re.M), f"no line for {key} in the table of policies"
        for key in ("order.kind", "data.pad_to"):
            assert re.search(rf"\[`{key}[^]]*`\]\({before}", text), f"{key} is not told below the table of policies"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{page.name} links {target}"
        if anchor and other.suffix == ".md":
            assert anchor in anchors(other), f"{page.name} links {target}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("page", "values"), CONFIGS)
def test_configs_parse_and_run(page: str, values: dict[str, Any], tmp_path: Path) -> None:
    """Those that name no data of their own are run on the embedded sentences."""
    config = parse({**values, "outputs": str(tmp_path)}, source=page)
    if config.data.path is None and config.data.name is None:
        assert (run(config) / "records.parquet").exists()


@pytest.mark.parametrize("page", ["pool", "token_budget"])
def test_examples_say_what_they_print(page: str) -> None:
    done = doctest.testfile(str(NOTES / f"{page}.md"), module_relative=False)
    assert done.attempted > 0
    assert done.failed == 0


def stated(page: str) -> dict[str, tuple[str, str]]:
    """Key -> the table of the config and the default that the page's tables of keys tell."""
    found, table = {}, ""
    for line in text_of(page).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if match := re.match(r"key of `\[(\w+)\]`", cells[0]):
            table = match[1]
        elif not line.startswith("|"):
            table = ""
        elif table and (match := re.fullmatch(r"`(\w+)`", cells[0])) and len(cells) > 1:
            found[match[1]] = (table, cells[1])
    return found


@pytest.mark.parametrize("page", [*KINDS, "orders", "concatenate", "masks", "compile"])
def test_keys_and_defaults_are_the_configs(page: str) -> None:
    told = stated(page)
    for key, (table, default) in told.items():
        field = (KINDS[page] if table == "policy" else TABLES[table]).model_fields[key]
        if default:
            assert default == in_words(field.default), f"{page}: {table}.{key}"
    if page in KINDS:
        known = set(KINDS[page].model_fields) - {"kind"}
        assert known == {key for key, (table, _) in told.items() if table == "policy"} - {"kind"}


def in_words(value: Any) -> str:
    """A default as a page tells it."""
    if value is None:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else repr(value)}`".replace("'", '"')


def test_the_tables_of_keys_are_read() -> None:
    assert stated("minmax") == {"prefetch": ("policy", "`16`"), "solver": ("policy", '`"auto"`')}
    assert RunConfig.model_fields["seed"].default == 0, "as pool.md tells it"


# --- numbers -------------------------------------------------------------------------------------


def told_rows(text: str) -> list[tuple[str, str, dict[str, str]]]:
    """(arm, data, column -> cell) of each line of a table that tells figures of arms."""
    found, header = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif cells[:2] == ["arm", "data"]:
            header = cells
        elif header and not cells[0].startswith(":"):
            found.append((cells[0], cells[1], dict(zip(header[2:], cells[2:], strict=True))))
    return found


def plan_rows(question: Question) -> dict[str, Row]:
    """Return the rows that `ddpsched plan` prints, by arm."""
    return {row.arm: row for row in compare(question)}


def shown(row: Row, column: str) -> str:
    assert row.figures is not None
    return COLUMNS[column](row, row.figures)


@pytest.mark.slow
def test_the_table_on_planning_is_what_plan_prints(data_dir: Path) -> None:
    text = (ROOT / "report/notes/planning.md").read_text(encoding="utf-8")
    lines = text.split("## What would I gain?")[1].split("```")[3].splitlines()
    rows = plan_rows(Question(lengths_of(data_dir, "SST-2"), 4, 32))
    columns = (
        "yardstick",
        "times static",
        "same gradient",
        "real tokens",
        "imbalance",
        "gap",
        "micro-batches",
        "order bias",
        "steps",
        "B varies",
    )
    printed = [" ".join([arm, *(shown(row, column) for column in columns)]).split() for arm, row in rows.items()]
    assert [line.split() for line in lines[3:]] == printed


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["SST-2", "GSM8K"])
def test_the_pages_rows_are_what_commands_print(trace: str, data_dir: Path) -> None:
    question = Question(lengths_of(data_dir, trace), 4, 32)
    told = [(page.stem, *row) for page in PAGES for row in told_rows(page.read_text(encoding="utf-8"))]
    rows = plan_rows(question)
    rows |= {arm: measure(question, arm, fitted(question, ARMS[arm])) for _, arm, data, _ in told if arm in ARMS}
    checked = 0
    for page, arm, data, cells in told:
        if data == trace:
            assert {column: shown(rows[arm], column) for column in cells} == cells, f"{page}: {arm}"
            checked += 1
    assert checked > 10


def test_the_padding_of_a_curriculum_is_that_of_the_frozen_results() -> None:
    settings = json.loads((ROOT / "report" / "results" / "policies.json").read_text(encoding="utf-8"))
    rows = {(each["label"], arm["arm"]): arm for each in settings for arm in each["arms"]}
    page = " ".join(text_of("curriculum").split())
    (sorted_, shuffled), (sorted_2, shuffled_2) = (
        [rows[f"{data}, G = 4, virtual, curriculum", arm] for arm in ("static (curriculum)", "static")]
        for data in ("sst2", "gsm8k")
    )
    padding = f"padding is {100 * sorted_['padding']:.1f} % of what `static` computes on SST-2, shuffled"
    assert f"{padding} {100 * shuffled['padding']:.1f} %; on GSM8K {100 * sorted_2['padding']:.1f} and" in page
    assert f"and {100 * shuffled_2['padding']:.1f} %. The largest" in page
    share = f"are {sorted_['yardstick']:.2f} times an even share of the real ones, shuffled {shuffled['yardstick']:.2f}"
    assert f"{share} times; on GSM8K {sorted_2['yardstick']:.2f} and {shuffled_2['yardstick']:.2f} times." in page


def test_the_study_of_verdicts_has_the_steps_that_its_command_asks_for() -> None:
    page = text_of("verdicts")
    (steps,) = re.findall(r"^python -m experiments\.sweep experiments/speed\.toml steps=(\d+) ", page, re.M)
    shown = re.findall(r" (\d+) \((\d)\) ", page)
    launches = len(tomllib.loads((ROOT / "experiments" / "speed.toml").read_text(encoding="utf-8"))["grid"]["seed"])
    measured = int(steps) - warmup_steps(int(steps))
    assert set(shown) == {(str(launches * measured), str(launches))}


def test_the_same_arm_twice_is_that_of_the_frozen_results() -> None:
    """static's speeds of the two studies, and what the slower one made of another arm."""
    settings = json.loads((ROOT / "report" / "results" / "policies.json").read_text(encoding="utf-8"))
    speeds = {(each["label"], arm["arm"]): arm["tokens_per_s"] for each in settings for arm in each["arms"]}
    page = text_of("verdicts")
    for data in ("sst2", "gsm8k"):
        first, second = (speeds[f"{data}, G = 2, distributed{topic}", "static"] for topic in ("", ", curriculum"))
        name = {"sst2": "SST-2", "gsm8k": "GSM8K"}[data]
        assert f"| {name} | {first:,.0f} | {second:,.0f} | −{1 - second / first:.0%} |".replace("%", " %") in page
    best = speeds["gsm8k, G = 2, distributed, curriculum", "token_budget (curriculum, sqrt LR)"]
    assert f"{best / second:.2f} times static's speed" in page
    assert f"against the faster it is {best / first:.2f} times" in page
