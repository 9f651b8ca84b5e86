"""The report as Markdown, from results; the same results give the same bytes."""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
except ImportError as error:
    raise ImportError(f'{error.name} is missing; install what builds the report: pip install -e ".[report]"') from None
from markupsafe import Markup

from analysis.settings import AA
from ddpsched.visible_text import visible
from report import compared, compared_words, compiled, on_gpu, reliability, wording
from report.conclusions import conclusions, ratio
from report.results import Results, compiled_figure, figure_names, loss_figure
from report.set_up import set_up

HERE = Path(__file__).parent
SPECIAL = re.compile(r"([\\`*_\[\]|~])")
CAPTIONS = {
    "1-step-time": "Longest compute time over ranks (above) and step time (below), per step.",
    "2-time-spread": "Standard deviation over ranks of compute time (bold) and of step time (dotted), per step.",
    "3-token-spread": "Standard deviation over ranks of padded tokens, per step.",
    "4-memory-spread": "Standard deviation over ranks of peak memory, per step.",
    "5-time-ecdf": "Distribution over steps of the longest compute time (left) and of the step time (right).",
}


def as_text(value: Any) -> Any:
    """Return a string escaped for Markdown and HTML; numbers and markup as they are.

    >>> print(as_text("<b> [x](y) | z"))
    &lt;b&gt; \\[x\\](y) \\| z
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return Markup(SPECIAL.sub(r"\\\1", html.escape(visible(re.sub(r"\s+", " ", value)), quote=False)))


def markdown(results: Results, figures_folder: str) -> str:
    """Return the report as Markdown; figures are linked below ``figures_folder``."""
    # finalize sees every value that the template prints, so no data reaches the page unescaped
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, finalize=as_text, undefined=StrictUndefined
    )
    settings = [{**setting, **results.set_ups[setting["slug"]]} for setting in results.settings]
    text = environment.get_template("template.md").render(
        settings=settings,
        left_out=results.left_out,
        synchronisers=results.synchronisers,
        comparison=results.comparison,
        findings=results.findings,
        gpus=results.gpus,
        compiled=results.compiled,
        conclusions=conclusions(results.settings),
        compared_conclusions=compared.conclusions(results.comparison),
        captions=CAPTIONS,
        next_figure=partial(next, count(1)),
        **_lookups(results, figures_folder),
        **_phrases(),
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _lookups(results: Results, figures_folder: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of a setting that the template calls, by name."""

    def figures(setting: Mapping[str, Any]) -> dict[str, str]:
        names = figure_names(setting["slug"])
        return {name: Markup(f"{figures_folder}/{file}") for name, file in names.items() if file in results.figures}

    def static(setting: Mapping[str, Any]) -> dict[str, Any] | None:
        return next((arm for arm in setting["arms"] if arm["arm"] == "static"), None)

    def others(setting: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [arm for arm in setting["arms"] if arm["arm"] not in ("static", AA)]

    def pairs(setting: Mapping[str, Any]) -> list[tuple[str, str]]:
        return list(dict.fromkeys((row["arm"], row["baseline"]) for row in setting["ratios"]))

    def listed_yardsticks(setting: Mapping[str, Any]) -> str:
        return wording.listed([f"{wording.number(arm['yardstick'])} ({arm['arm']})" for arm in setting["arms"]])

    def learning(setting: Mapping[str, Any]) -> str:
        return wording.learning(setting["arms"])

    def tag(setting: Mapping[str, Any]) -> str:
        short = [f"G = {s['world_size']}, {s['mode']}" for s in results.settings]
        mine = f"G = {setting['world_size']}, {setting['mode']}"
        return mine if short.count(mine) == 1 else str(setting["label"])

    def forced(setting: Mapping[str, Any]) -> bool:
        policy = setting["config"].get("policy", {})
        return policy.get("kind") == "minmax" and policy["prefetch"] * setting["world_size"] == setting["global_batch"]

    def warmups() -> str:
        counts = sorted({int(arm["warmup_steps"]) for setting in results.settings for arm in setting["arms"]})
        return " or ".join(map(str, counts))

    def curves(setting: Mapping[str, Any]) -> str | None:
        return linked(loss_figure(setting))

    def compiled_steps(study: Mapping[str, Any]) -> str | None:
        return linked(compiled_figure(study))

    def linked(file: str) -> str | None:
        return Markup(f"{figures_folder}/{file}") if file in results.figures else None

    functions: Sequence[Callable[..., Any]] = (
        figures, static, others, pairs, listed_yardsticks, learning, warmups,
        tag, forced, ratio, set_up, curves, compiled_steps,
    )  # fmt: skip
    return {function.__name__: function for function in functions}


def _phrases() -> dict[str, Any]:
    names = (
        "change", "percent", "number", "duration", "size", "interval", "signed", "tracking", "overhead", "shift",
        "mismatch", "outcome", "significant", "verdict",
    )  # fmt: skip
    return {name: getattr(wording, name) for name in names} | {
        "compared": compared,
        "says": compared_words,
        "compiling": compiled,
        "reliability": reliability,
        "on_gpu": on_gpu,
    }
