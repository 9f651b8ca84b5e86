"""All numbers of the report as ``Results``, read from studies or frozen in a folder."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis import comparison, tables
from analysis.arms import compare_all
from analysis.draw import draw_setting, save
from analysis.draw_compiled import draw_compiled
from analysis.figures import FIGURES
from analysis.freeze import open_study, portable
from analysis.load import Study
from analysis.settings import settings
from ddpsched.errors import DataError
from ddpsched.records import read_json, write_json
from experiments.reliability.findings import Finding, frozen
from report import compared, on_gpu
from report.compiled import measured_on
from report.conclusions import Conclusion, conclusions

RELIABILITY = "reliability"  # the folder of frozen findings
GPU, MEASURED = "gpu", "gpu.json"  # the folder of what was measured on GPUs, and the file of one of them
SYNCHRONISERS, COMPILED = "synchronisers", "compiled"  # the folders of benchmarks' tables
COMPARISON = "policies"  # the prefix of the folders of studies that compare all policies


@dataclass(frozen=True, eq=False)
class Results:
    """All numbers and figures of the report.

    Attributes:
        settings: the tables of each setting, in order.
        set_ups: its environment and config by slug.
        left_out: the reasons for runs that are left out, by study and run.
        figures: PNGs by file name.
        synchronisers: the tables of experiments.benchmarks.syncs.
        comparison: a table for each setting of the studies of all policies.
        findings: of the checks of reliability, by name.
        gpus: of experiments.gpu, one of each device.
        compiled: the tables of experiments.benchmarks.compiled, one for each model.
    """

    settings: list[dict[str, Any]]
    set_ups: dict[str, dict[str, Any]]
    left_out: dict[str, str]
    figures: dict[str, bytes]
    synchronisers: list[dict[str, Any]] = field(default_factory=list)
    comparison: list[dict[str, Any]] = field(default_factory=list)
    findings: Mapping[str, Finding] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    compiled: list[dict[str, Any]] = field(default_factory=list)


def collect(studies: Sequence[Path]) -> Results:
    """Return the results of finished studies, and of folders of experiments.gpu.

    Raises DataError where one of them has no finished run.
    """
    results = Results([], {}, {}, {})
    for folder in studies:
        if (folder / MEASURED).exists():
            results.gpus.append(portable(read_json(folder / MEASURED)))
            continue
        study = open_study(folder)
        results.left_out.update({f"{folder.name}/{name}": portable(why) for name, why in study.left_out.items()})
        if folder.name.startswith(COMPARISON):
            _compare(study, results)
            continue
        found = settings(study.runs)
        for setting, table in zip(found, tables.study_tables(found), strict=True):
            # the set-up is the scheduled arm's, whose window and cost matter, where there is one
            shown = next((run for run in setting.runs if run.policy != "static"), setting.runs[0])
            results.settings.append(portable(table))
            windows = sorted({run.config["policy"]["prefetch"] for run in setting.runs if run.policy == "minmax"})
            set_up = {"environment": shown.environment, "config": shown.config, "windows": windows}
            results.set_ups[setting.slug] = portable(set_up)
            with tempfile.TemporaryDirectory() as drawn:
                results.figures.update({path.name: path.read_bytes() for path in draw_setting(setting, Path(drawn))})
    labels = [setting["label"] for setting in results.settings]
    for table, label in zip(results.settings, labels, strict=True):
        if labels.count(label) > 1:  # two studies did the same work: their names distinguish them
            table["label"] = f"{label}, study {results.set_ups[table['slug']]['config']['study']}"
    return results


def _compare(study: Study, results: Results) -> None:
    """Add a study's comparison of policies to the results."""
    with tempfile.TemporaryDirectory() as drawn:
        content = comparison.write(compare_all(study.runs), Path(drawn))
        results.comparison.extend(portable(content))
        results.figures.update({path.name: path.read_bytes() for path in Path(drawn).glob("*.png")})


def filled(results: Results, frozen: Results) -> Results:
    """Return the results with the parts that were not run filled from the frozen ones."""
    if not results.settings:
        left_out = frozen.left_out | results.left_out
        results = replace(results, settings=frozen.settings, set_ups=frozen.set_ups, left_out=left_out)
    results = replace(
        results,
        synchronisers=results.synchronisers or frozen.synchronisers,
        comparison=results.comparison or frozen.comparison,
        findings=results.findings or frozen.findings,
        gpus=results.gpus or frozen.gpus,
        compiled=results.compiled or frozen.compiled,
    )
    shown = {name for setting in results.settings for name in figure_names(setting["slug"]).values()}
    shown |= {loss_figure(setting) for setting in results.comparison}
    shown |= {compiled_figure(study) for study in results.compiled}
    figures = {name: content for name, content in frozen.figures.items() if name in shown}
    return replace(results, figures=figures | results.figures)


def read(folder: Path) -> Results:
    """Return the results that ``write`` wrote into a folder. Raises DataError where there are none."""
    try:
        content = tables.read(folder)
        set_ups = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"no frozen results: {error}; give a study's folder, outputs/STUDY") from None
    figures = {path.name: path.read_bytes() for path in sorted((folder / "figures").glob("*.png"))}
    file = folder / "comparison.json"
    arms = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    findings = frozen(folder / RELIABILITY)
    synchronisers, gpus, compiled = (read_tables(folder / name) for name in (SYNCHRONISERS, GPU, COMPILED))
    return Results(
        content["settings"], set_ups, content["left_out"], figures, synchronisers, arms, findings, gpus, compiled
    )


def read_tables(folder: Path) -> list[dict[str, Any]]:
    """Return the tables of a benchmark, a file for each model or device, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def write(results: Results, folder: Path) -> None:
    """Write tables, conclusions, environments and figures into a folder, as ``read`` reads them."""
    tables.write(folder, results.settings, results.left_out)
    write_json(folder / "environment.json", results.set_ups)
    write_json(folder / "conclusions.json", all_conclusions(results))
    (folder / "comparison.json").unlink(missing_ok=True)
    if results.comparison:
        write_json(folder / "comparison.json", results.comparison)
    for room, found in ((SYNCHRONISERS, results.synchronisers), (COMPILED, results.compiled)):
        for table in found:
            (folder / room).mkdir(exist_ok=True)
            write_json(table_file(folder / room, table["model"]), table)
    for name, finding in results.findings.items():
        (folder / RELIABILITY).mkdir(exist_ok=True)
        write_json(folder / RELIABILITY / f"{name}.json", asdict(finding))
    for measured in results.gpus:
        (folder / GPU).mkdir(exist_ok=True)
        write_json(folder / GPU / f"{on_gpu.slug(measured)}.json", measured)
    (folder / "figures").mkdir(exist_ok=True)
    for stale in (folder / "figures").glob("*.png"):
        stale.unlink()
    for name, content in results.figures.items():
        (folder / "figures" / name).write_bytes(content)


def table_file(folder: Path, model: str) -> Path:
    """Return the file of a model's table in a benchmark's folder."""
    return folder / f"{model.rpartition('/')[2]}.json"


def redrawn(results: Results) -> Results:
    """Return the results with the figures that are drawn from frozen tables."""
    figures = dict(results.figures)
    for study in results.compiled:
        with tempfile.TemporaryDirectory() as drawn:
            path = Path(drawn) / compiled_figure(study)
            save(draw_compiled(study["launches"], f"{study['model']}, compiled: {measured_on(study)}"), path)
            figures[path.name] = path.read_bytes()
    return replace(results, figures=figures)


def all_conclusions(results: Results) -> list[Conclusion]:
    """Return the conclusions on the studies, and on the comparison of policies."""
    return [*conclusions(results.settings), *compared.conclusions(results.comparison)]


def loss_figure(setting: Mapping[str, Any]) -> str:
    """Return the file name of a compared setting's loss curves."""
    return f"{setting['slug']}-loss.png"


def compiled_figure(study: Mapping[str, Any]) -> str:
    """Return the file name of a compiled model's step times."""
    return f"compiled-{study['model'].rpartition('/')[2]}.png"


def figure_names(slug: str) -> dict[str, str]:
    """Return the five file names of a setting, by figure."""
    return {figure: f"{slug}-{figure}.png" for figure in FIGURES}
