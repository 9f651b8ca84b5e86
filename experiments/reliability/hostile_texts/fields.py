"""Fields that others fill: a hostile text is put into one of them, and the real readers and writers run over it."""

import copy
import csv
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tomli_w

from analysis import timeline as timelines
from analysis.compare_runs import compared
from analysis.draw import draw_setting
from analysis.load import load_study
from analysis.tables import write
from analysis.terminal import comparison, console, verdicts
from analysis.trace import write_trace
from analysis.waits import load_timeline
from ddpsched import cli
from ddpsched.config import apply_overrides, parse
from ddpsched.costs.calibration import Calibration
from ddpsched.data.embedded.sentences import embedded_tokenizer
from ddpsched.data.order_file import About, OrderedFile, OrderedWriter
from ddpsched.data.row_source import file_rows
from ddpsched.monitor.commands import print_comparison
from ddpsched.monitor.listing import list_runs
from ddpsched.monitor.showing import show_run
from ddpsched.monitor.watching import watch
from ddpsched.record_lines import sealed
from ddpsched.records import compact, write_json
from ddpsched.run_folder import STATUS, read_status
from ddpsched.run_loop import run
from experiments.reliability.fuzz.mutate import at, changed, leaves
from experiments.reliability.fuzz.records import MEASURED
from report.html import page
from report.render import tables as tables_of
from report.results import Results

CONFIG: dict[str, Any] = {
    "name": "case", "study": "study", "outputs": "outputs", "steps": 2, "world_size": 2, "global_batch": 4,
    "policy": {"kind": "static"}, "executor": {"kind": "simulated"},
}  # fmt: skip
STRINGS = (
    "name", "study", "outputs", "data.path", "data.dev", "data.text", "data.label", "data.prompt", "data.tokenizer",
    "data.subset", "model.name", "model.task", "order.path", "order.kind", "cost.path", "cost.kind", "memory.path",
    "policy.kind", "policy.peer", "executor.kind", "train.target", "sync.kind", "lr.kind",
)  # fmt: skip
ENVIRONMENT: dict[str, Any] = {
    "versions": {"python": "3.11"}, "device": "d", "cpu": "c", "cores": 2, "platform": "p", "commit": "c", "data": "s",
    "launch": {"how": "interleaved", "id": "one"}, "num_samples": 9, "caps": None, "num_truncated": 0,
}  # fmt: skip
Case = Callable[[Random, str, Path, bool], None]  # random, the text, the sandbox to work in, and whether to draw


@dataclass(frozen=True)
class Templates:
    """The start of all cases: a study of two finished runs, the folder it lies in, and a tokenizer's file."""

    study: Path
    tokenizer: Path

    @classmethod
    def made(cls, folder: Path) -> "Templates":
        """Run two simulated runs in ``folder``."""
        for kind in ("static", "balanced"):
            values = {**CONFIG, "name": kind, "outputs": str(folder), "steps": 8, "policy": {"kind": kind}}
            run(parse({**values, "data": {"size": 40}}))
        embedded_tokenizer().save(str(folder / "tokenizer.json"))
        return cls(folder / "study", folder / "tokenizer.json")


def config_case(random: Random, text: str, sandbox: Path, draws: bool) -> None:
    """Run a config with the text at one of its keys, from a file or from the command line."""
    key = random.choice(STRINGS)
    if key == "outputs" and ("/" in text or "~" in text or ".." in text):
        key = "study"  # outputs may be anywhere: it is the one path that a run is told to write to
    word = f"{key}={json.dumps(text)}"
    path = sandbox / "case.toml"
    path.write_text(tomli_w.dumps({**CONFIG, "data": {"size": 40}}), encoding="utf-8")
    words = [word if random.random() < 0.5 else f"{key}={text}"]
    if random.random() < 0.5 and text.encode(errors="ignore").decode() == text:
        values = apply_overrides(CONFIG, [])
        table, _, last = key.rpartition(".")
        (values.setdefault(table, {}) if table else values)[last] = text
        path.write_text(tomli_w.dumps(values), encoding="utf-8")
        words = []
    cli.run_config(str(path), words)


def data_case(random: Random, text: str, sandbox: Path, tokenizer: Path) -> None:
    """Run, audit and plan a data set with the text as file name, column, sample or label."""
    field = random.choice(["text", "label", "column", "value", "file"])
    column = text if field == "column" else "sentence"
    rows: list[dict[str, Any]] = [{column: f"a good film {i}", "label": str(i % 2)} for i in range(12)]
    rows[3] |= {column: text} if field == "value" else {"label": text} if field == "label" else {}
    rows += [{column: text, "label": "1"}] if field == "text" else []
    kind = random.choice([".jsonl", ".csv", ".tsv"])
    path = sandbox / f"{_file_name(text) if field == 'file' else 'train'}{kind}"
    with path.open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
        if kind == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        elif kind == ".csv":
            writer = csv.writer(file)
            writer.writerows([list(rows[0]), *(list(row.values()) for row in rows)])
        else:
            lines = ["\t".join(map(str, row)) for row in ([*rows[0]], *(row.values() for row in rows))]
            file.write("".join(line.encode(errors="replace").decode() + "\n" for line in lines))
    on_bad = random.choice(["error", "skip"])
    data = {"path": str(path), "text": column, "tokenizer": str(tokenizer), "max_length": 32, "on_bad": on_bad}

    def body() -> int:
        folder = run(parse({**CONFIG, "data": data}))
        inspect.unwrap(cli.audit)(folder, False)
        return 0

    cli.guarded(body)
    plan(path, sandbox, text=[column], tokenizer=str(tokenizer), figure=None)


def plan(lengths: Path, sandbox: Path, **options: Any) -> None:
    """Call ``ddpsched plan`` with an export."""
    export = sandbox / "plan.parquet"
    given = {"policy": ["static"], "export": export, **options}
    cli.guarded(lambda: inspect.unwrap(cli.plan)(lengths=lengths, world_size=2, global_batch=4, **given))


def length_case(random: Random, text: str, sandbox: Path, draws: bool) -> None:
    """Plan lengths from a file or a column whose name is the text; draw the table now and then."""
    path = sandbox / f"{_file_name(text)}.csv"
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        csv.writer(file).writerows(
            [["length", text.encode(errors="replace").decode()], *([i % 9 + 1, i] for i in range(20))]
        )
    column = random.choice(["length", text])
    plan(path, sandbox, column=column, figure=sandbox / "plan.png" if draws else None)


def _file_name(text: str) -> str:
    """Return a text as a file may be called."""
    name = text.encode(errors="surrogatepass").replace(b"/", b"_").replace(b"\0", b"_")[:200]
    return "x" if name in (b"", b".", b"..") else os.fsdecode(name)


def run_case(random: Random, text: str, sandbox: Path, study: Path, draws: bool) -> None:
    """Put the text into a finished run's files; analyse, compare, audit and report it."""
    folder = sandbox / "outputs" / "study"
    _copy(study, folder)
    victim = folder / "balanced"
    field = random.choice(["environment", "environment", "config", "status", "record", "name", "line", "evaluation"])
    if field == "environment":
        path, values = victim / "environment.json", copy.deepcopy(ENVIRONMENT)
        spots = [spot for spot in leaves(values) if isinstance(at(values, spot), str)]
        values = changed(values, random.choice(spots), text)
        for name in ("static", "balanced"):  # of one setting
            (folder / name / path.name).write_text(json.dumps(values), encoding="utf-8")
    elif field == "config" and text.encode(errors="ignore").decode() == text:
        _change_config(random, text, folder)
    elif field == "status":
        state = random.choice(["failed", "running", "done", text])
        status = {"state": state, "reason": text, "launch": text, "started": text, "finished": text}
        (victim / STATUS).write_text(json.dumps(status), encoding="utf-8")
    elif field in ("record", "line"):
        _change_records(random, text, victim, compacts=field == "record")
    elif field == "evaluation":
        (victim / "evaluations.jsonl").write_text(json.dumps({"step": text, "loss": 1}) + "\n", encoding="utf-8")
    else:
        victim = victim.rename(folder / _file_name(text))
    cli.guarded(lambda: _analysed(folder, sandbox, draws))
    cli.guarded(lambda: print_status(victim))
    cli.guarded(lambda: inspect.unwrap(cli.audit)(victim, False) and None)
    cli.guarded(lambda: inspect.unwrap(cli.fit)(victim, None))
    cli.guarded(lambda: print_comparison(folder / "static", [victim], False))
    cli.guarded(lambda: list_runs(folder, as_json=False))
    cli.guarded(lambda: show_run(victim, as_json=False))
    cli.guarded(lambda: watch(victim))
    cli.guarded(lambda: _timeline(victim, sandbox))


def print_status(folder: Path) -> None:
    """Print a run's status as a message."""
    status = read_status(folder)
    console().print(f"{folder.name}: {status['state']}: {status.get('reason')}", soft_wrap=True)


def _copy(source: Path, target: Path) -> None:
    import shutil

    shutil.copytree(source, target)


def _change_config(random: Random, text: str, folder: Path) -> None:
    import tomllib

    for name in ("static", "balanced"):
        path = folder / name / "config.toml"
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        key = random.choice(["study", "name", "data", "policy", "kind", "order", "cost", "more"])
        if key in ("study", "name"):
            values[key] = text
        elif key == "kind":
            values["policy"] = {"kind": "peer", "peer": text}
        elif key == "more":
            values["data"]["text"], values["model"]["name"] = text, text
        else:
            values[key] = {**values[key], "kind" if key != "data" else "name": text}
        path.write_text(tomli_w.dumps(values), encoding="utf-8")


def _change_records(random: Random, text: str, folder: Path, compacts: bool) -> None:
    name = random.choice(["run", "mode", "policy", "plan_hash"])
    for path in sorted(folder.glob("records-rank*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        lines = [sealed(json.dumps({**{k: v for k, v in row.items() if k != "crc"}, name: text})) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    if compacts and text.encode(errors="ignore").decode() == text:
        compact(folder)


def _analysed(folder: Path, sandbox: Path, draws: bool) -> None:
    study = load_study(folder)
    results = Results({study.path.name: study})
    tables = [each.table for each in results.measured]
    write(folder / "figures", tables, study.left_out)
    out = console()
    for table in tables:
        out.print(comparison(table))
        out.print(verdicts(table))
    for name, reason in study.left_out.items():
        out.print(f"left out: {name}: {reason}")
    compared(folder)
    if draws:
        for each in results.measured:
            draw_setting(each.setting, folder / "figures")
    text = report_of(results)
    (sandbox / "report.md").write_text(text, encoding="utf-8")
    (sandbox / "report.html").write_text(page(text, {}), encoding="utf-8")


def report_of(results: Results) -> str:
    """Return the tables of studies as Markdown, without figures."""
    return tables_of(results, {}, ", ".join(results.studies))


def _timeline(folder: Path, sandbox: Path) -> None:
    timeline = load_timeline(folder)
    console().print(timelines.terminal_table(timeline))
    for line in timelines.sentences(timeline):
        console().print(line)
    write_trace(timeline, sandbox / "trace.json")


def calibration_case(random: Random, text: str, sandbox: Path, draws: bool) -> None:
    """Plan with a calibration that has the text in one of its strings, and compare it with a run's identity."""
    spots = [spot for spot in leaves(MEASURED) if isinstance(at(MEASURED, spot), str)]
    path = sandbox / "device.json"
    write_json(path, changed(MEASURED, random.choice(spots), text))
    np.save(sandbox / "lengths.npy", np.arange(1, 25))
    write_json(sandbox / "harmless.json", MEASURED)
    identity = Calibration.load(sandbox / "harmless.json").identity
    cli.guarded(lambda: console().print("; ".join(Calibration.load(path).check(identity))))
    plan(sandbox / "lengths.npy", sandbox, calibration=str(path))


def order_case(random: Random, text: str, sandbox: Path, tokenizer: Path) -> None:
    """Run with an ordered file that has the text as metric, source, data or comment."""
    path, data = sandbox / "order.npy", sandbox / "train.jsonl"
    rows = [{"sentence": f"a good film {i}", "label": i % 2} for i in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    values: dict[str, Any] = {"metrics": ("length",), "data": file_rows(data).fingerprint(), "source": "s", "how": "h"}
    field = random.choice(list(values))
    values[field] = (text,) if field == "metrics" else text

    def write_order() -> None:
        dtypes = [np.dtype("i8"), np.dtype("i8")]
        writer = OrderedWriter(path, 12, dtypes, About(**values))
        writer.begin()
        writer.finish(writer.write(0, [np.arange(12), np.arange(12)]))

    if text.encode(errors="ignore").decode() == text and len(text) < 10**5:
        write_order()
    else:
        path.write_bytes(text.encode(errors="surrogatepass"))
    cli.guarded(lambda: console().print(str(OrderedFile.open(path).about.source)))
    table = {"path": str(data), "tokenizer": str(tokenizer), "max_length": 32}
    order = {"kind": "curriculum", "path": str(path)}

    def body() -> None:
        run(parse({**CONFIG, "data": table, "order": order}))

    cli.guarded(body)
