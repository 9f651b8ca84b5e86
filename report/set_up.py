"""The set-up of all settings as rows of one table, from their environments and configs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.launches import spans
from report.results import Measured
from report.wording import ABSENT, listed, processor, size

RANKS = {"distributed": "processes", "virtual": "played in turn by one device", "simulated": "simulated"}


def set_up(settings: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return rows (name, a value for each setting) of what a reader needs to run it again; without unknown ones."""
    columns = [_column(setting) for setting in settings]
    names = list(columns[0]) if columns else []
    rows = [(name, [str(column[name] or "–") for column in columns]) for name in names]
    return [(name, values) for name, values in rows if set(values) != {"–"}]


def _column(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return one setting's values by name; None where unknown or not part of such a run."""
    environment, config = setting["environment"], setting["config"]
    model, data, train, order = (config.get(table, {}) for table in ("model", "data", "train", "order"))
    simulated, distributed = setting["mode"] == "simulated", setting["mode"] == "distributed"
    seeds = sorted({int(run["seed"]) for run in setting["runs"]})
    length = setting["run_length"] or _count(config.get("epochs"), "epoch")
    device = environment.get("device")
    rate = train.get("learning_rate")  # a loop of one's own tells none, as its optimizer is its own
    cut = environment.get("num_truncated")
    return {
        "ranks are": RANKS[setting["mode"]],
        "batch": f"G = {setting['world_size']}, B = {setting['global_batch']} samples a step",
        "device": None if simulated or device == environment.get("cpu") else device,
        "CPU": _join(environment.get("cpu"), _either(setting["all_cores"]), "core(s)"),
        "threads of a process": config.get("executor", {}).get("threads"),
        "memory": _with(size, environment.get("memory_bytes")),
        "platform": environment.get("platform"),
        "model": None if simulated or not model else _model(model, environment.get("num_parameters")),
        "data": environment.get("data"),
        "training samples": environment.get("num_samples"),
        "texts cut at": None if cut is None else f"{data.get('max_length', ABSENT)} tokens: {cut} of them",
        "window K": listed([str(window) for window in setting["windows"]]) if setting["windows"] else None,
        "run": ", ".join(filter(None, (length, order and f"{order['kind']} order"))) or None,
        "seeds": listed([str(seed) for seed in seeds]),
        "launches": None if simulated else setting["launches"],
        "cost that plans minimise": _costs(setting["costs"]),
        "optimizer": None
        if simulated or rate is None
        else f"AdamW, learning rate {rate}{_precision(train.get('precision'))}",
        "gradient synchronisation": config.get("sync", {}).get("kind") if distributed else None,
        "versions": ", ".join(
            f"{name} {version}" for name, version in environment.get("versions", {}).items() if version
        ),
        "commit": _either([_commit(each) for each in setting["all_commit"]]),
    }


def _commit(told: str) -> str:
    """Return a commit in words.

    >>> _commit("4b94157+")
    '4b94157 with changes'
    """
    return told.replace("+", " with changes")


def _costs(arms: Mapping[str, str]) -> str | None:
    """Return what plans minimise: the cost of most arms, then others with their arms.

    >>> _costs({"minmax": "padded_tokens", "packed": "padded_tokens", "balanced": "calibrated"})
    'padded_tokens; calibrated for balanced'
    """
    kinds = Counter(arms.values()).most_common()
    rest = [f"{kind} for {listed([arm for arm in arms if arms[arm] == kind])}" for kind, _ in kinds[1:]]
    return "; ".join([*(kind for kind, _ in kinds[:1]), *rest]) or None


def _count(number: int | None, what: str) -> str | None:
    return None if number is None else f"{number} {what}{'' if number == 1 else 's'}"


def _precision(given: str | None) -> str:
    return "" if given in (None, "auto") else f", precision {given}"


def _either(values: Sequence[str]) -> str | None:
    return " or ".join(values) or None


def _join(text: str | None, count: str | None, of: str) -> str | None:
    return text if text is None or count is None else f"{text}, {count} {of}"


def _with(form: Any, value: Any) -> str | None:
    return None if value is None else str(form(value))


def _model(model: Mapping[str, Any], num_parameters: int | None) -> str:
    parameters = "" if num_parameters is None else f", {num_parameters / 1e6:.1f} million parameters"
    return f"{model.get('name', ABSENT)}, {model.get('weights', ABSENT)} weights{parameters}"


def by_device(measured: Sequence[Measured]) -> str:
    """Return the devices with the studies that ran on each."""
    found: dict[str, list[str]] = {}
    for each in measured:
        found.setdefault(processor(str(each.table["device"])), []).append(each.study)
    return "; ".join(f"{device} ran {listed(sorted(set(studies)))}" for device, studies in found.items())


def in_brief(m: Measured) -> str:
    """Return model, batch and number of launches of a study."""
    model, launches = m.view["config"]["model"], spans(m.setting.runs)
    name = "MiniLM" if "minilm" in model["name"].lower() else model["name"]  # its path is in the appendix
    return f"{name}, {model['weights']} weights, B = {m.table['global_batch']}, {len(launches)} launches"
