"""The report and its appendix as Markdown, from results; the same results give the same bytes."""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import Any

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
except ImportError as error:
    raise ImportError(f'{error.name} is missing; install what builds the report: pip install -e ".[report]"') from None
from markupsafe import Markup

from analysis.settings import AA
from ddpsched.visible_text import visible
from experiments.trainers.frozen import PeersFile
from report import auto, compiled, measures, on_gpu, reliability, repeated, sentences, wording
from report.computed import COMPUTED, Computed
from report.conclusions import conclusions, failed, undecided
from report.figures import compiled_file, outline_file
from report.in_trainer import IN_TRAINER, Trainers
from report.over_others import OVER_OTHERS
from report.results import Measured, Results
from report.set_up import by_device, in_brief, set_up
from report.shift import LAWS, named

HERE = Path(__file__).parent
FIGURES = "figures"  # the folder beside a document
SPECIAL = re.compile(r"([\\`*_\[\]|~])")


def as_text(value: Any) -> Any:
    """Return a string escaped for Markdown and HTML; numbers and markup as they are.

    >>> print(as_text("<b> [x](y) | z"))
    &lt;b&gt; \\[x\\](y) \\| z
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return Markup(SPECIAL.sub(r"\\\1", html.escape(visible(re.sub(r"\s+", " ", value)), quote=False)))


def report(results: Results, figures: Mapping[str, bytes]) -> str:
    """Return the report, of ten printed pages. ``figures``: PNGs by file name; those that are there are shown."""
    computed = Computed(results)

    def one(name: str) -> Measured | None:
        return next(iter(results.of(name)), None)

    def views(found: Sequence[Measured]) -> list[dict[str, Any]]:
        return [each.view for each in found]

    return _filled(
        "template.md",
        figures,
        one=one,
        of=results.of,
        views=views,
        laws=LAWS.values(),
        named=named,
        reproduced=results.reproduced,
        elsewhere=lambda study: repeated.elsewhere(study, results),
        measured_again=lambda study: repeated.measured_again(study, results),
        measured=results.measured,
        by_device=by_device,
        in_brief=in_brief,
        left_out=results.left_out,
        num_runs=results.num_runs,
        planned_epoch=results.planned_epoch,
        thresholds=conclusions(results.measured),
        undecided=undecided,
        autos=results.autos,
        gpus=results.gpus,
        what_if=results.what_if,
        two_hosts=results.two_hosts,
        **{each.__name__: each for each in (*measures.MEASURES, *sentences.SENTENCES, *OVER_OTHERS)},
        **{name: getattr(computed, name) for name in COMPUTED},
        **_of_trainers(results),
    )


def tables(results: Results, figures: Mapping[str, bytes], title: str, whole: bool = False) -> str:
    """Return the tables of studies and benchmarks under a title. ``whole``: say what was not measured, too."""
    views = [each.view | {"outline": _link(outline_file(each), figures)} for each in results.measured]
    files = [each for each in results.trainers.values() if isinstance(each, PeersFile)]
    return _filled(
        "template_tables.md",
        figures,
        title=title,
        whole=whole,
        studies=[(study, list(group)) for study, group in groupby(views, key=lambda view: view["study"])],
        left_out=results.left_out,
        num_runs=results.num_runs,
        peers=[pair for file in files for pair in file.traces.items()],
        two_hosts=results.two_hosts,
        simulator=results.simulator,
        repeats=Computed.repeats,
        synchronisers=results.synchronisers,
        compiled=results.compiled,
        autos=results.autos,
        findings=results.findings,
        reproduced=results.reproduced,
        gpus=results.gpus,
        conclusions=conclusions(results.measured),
        failed=failed,
        undecided=undecided,
        **_of_trainers(results),
        **_lookups(results, figures),
    )


def _filled(template: str, figures: Mapping[str, bytes], **values: Any) -> str:
    # finalize sees every value that the template prints, so no data reaches the page unescaped
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, finalize=as_text, undefined=StrictUndefined
    )
    environment.filters["processor"] = wording.processor
    text = environment.get_template(template).render(
        next_figure=partial(next, count(1)), linked=partial(_linked, figures), set_up=set_up, **values, **_phrases()
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _of_trainers(results: Results) -> dict[str, Callable[..., Any]]:
    trainers = Trainers(results.trainers)
    return {name: getattr(trainers, name) for name in IN_TRAINER}


def _linked(figures: Mapping[str, bytes], name: str) -> str | None:
    return _link(f"{name}.png", figures)


def _link(file: str, figures: Mapping[str, bytes]) -> str | None:
    return Markup(f"{FIGURES}/{file}") if file in figures else None


def _lookups(results: Results, figures: Mapping[str, bytes]) -> dict[str, Callable[..., Any]]:
    """Return the functions of a setting that the tables call, by name."""

    def others(setting: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [arm for arm in setting["arms"] if arm["arm"] not in (setting["baseline"], AA)]

    def pairs(setting: Mapping[str, Any]) -> list[tuple[str, str]]:
        return list(dict.fromkeys((row["arm"], row["baseline"]) for row in setting["ratios"]))

    def learnt(setting: Mapping[str, Any]) -> bool:
        return setting["mode"] != "simulated" and any(arm["dev_loss"] is not None for arm in setting["arms"])

    def learning(setting: Mapping[str, Any]) -> Markup:
        return Markup(wording.learning(setting["arms"]))

    def outline(setting: Mapping[str, Any]) -> str | None:
        shown: str | None = setting["outline"]
        return shown

    def forced(setting: Mapping[str, Any]) -> bool:
        policy = setting["config"].get("policy", {})
        return policy.get("kind") == "minmax" and policy["prefetch"] * setting["world_size"] == setting["global_batch"]

    def warmups() -> str:
        counts = sorted({int(arm["warmup_steps"]) for each in results.measured for arm in each.table["arms"]})
        return " or ".join(map(str, counts))

    def compiled_steps(study: dict[str, Any]) -> str | None:
        return _link(compiled_file(study), figures)

    functions: Sequence[Callable[..., Any]] = (
        others, pairs, learnt, learning, outline, forced, warmups, compiled_steps,
    )  # fmt: skip
    return {function.__name__: function for function in functions} | {
        "ratio": measures.row_of, "beside_floor": measures.beside_floor,
    }  # fmt: skip


def _phrases() -> dict[str, Any]:
    names = (
        "are",
        "change",
        "percent",
        "number",
        "duration",
        "size",
        "interval",
        "signed",
        "listed",
        "significant",
        "verdict",
    )
    return {name: getattr(wording, name) for name in names} | {
        "compiling": compiled,
        "reliability": reliability,
        "on_gpu": on_gpu,
        "auto": auto,
        "repeated": repeated,
    }
