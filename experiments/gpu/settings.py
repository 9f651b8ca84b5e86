"""The configs of the arms of each part."""

from pathlib import Path
from typing import Any

from ddpsched.config import RunConfig, parse
from experiments.gpu.long_texts import write_model, write_texts
from experiments.gpu.sizes import Size

TOKENS = {"distilbert": 16, "gpt2": 0}  # of a sample of token_budget, padded: of the short texts, and of the long ones
AGAIN, BY_SDPA = "static again", "packed by SDPA"


def base(model: str, size: Size, work: Path) -> dict[str, Any]:
    """Return what all configs of a model share. ``work``: where texts and runs are written."""
    shared: dict[str, Any] = {"study": "gpu", "outputs": str(work / "outputs"), "train": {"save_model": False}}
    if model == "distilbert":
        return {**shared, "model": {"name": size.classifier, "dropout": 0.0}, "data": {"size": size.samples}}
    data = {"path": str(write_texts(work, size)), "text": "text", "max_length": size.longest}
    name = str(write_model(work, size))
    return {**shared, "model": {"name": name, "task": "causal_lm", "dropout": 0.0}, "data": data}


def calibrated(model: str, size: Size, work: Path) -> RunConfig:
    """Return the config whose model is calibrated."""
    most = max(batch for name, _, batch in size.speed if name == model)
    whole = {"world_size": 1, "policy": {"prefetch": most}}  # one window is a step
    return parse({**base(model, size, work), **whole, "steps": 1, "global_batch": most, "name": model})


def speed_arms(
    model: str, world_size: int, global_batch: int, size: Size, work: Path, calibration: Path
) -> dict[str, RunConfig]:
    """Return the arms by name. ``calibration``: of this model; without it costs are padded tokens."""
    shared = base(model, size, work) | {
        "steps": size.steps_of(global_batch), "global_batch": global_batch, "world_size": world_size,
    }  # fmt: skip
    cost = {"kind": "calibrated", "path": str(calibration)} if calibration.exists() else {"kind": "padded_tokens"}
    budget = global_batch // world_size * (TOKENS[model] or size.longest // 2)
    policies: dict[str, dict[str, Any]] = {
        "static": {"policy": {"kind": "static"}},
        AGAIN: {"policy": {"kind": "static"}},
        "batch_rebalance": {"policy": {"kind": "peer", "peer": "batch_rebalance"}},
        "token_budget": {"policy": {"kind": "token_budget", "max_tokens_for_batch": max(budget, size.longest)}},
        "balanced": {"policy": {"kind": "balanced"}, "cost": cost},
        "packed": {"policy": {"kind": "packed"}},
        BY_SDPA: {"policy": {"kind": "packed"}, "model": {**shared["model"], "packed_attention": "sdpa"}},
        "auto": {"policy": {"kind": "auto"}},  # by times of its own, and a few steps of each candidate
    }
    return {name: _named(name, shared | arm) for name, arm in policies.items()}


def compiled_arms(size: Size, work: Path) -> dict[str, RunConfig]:
    """Return static, eager, and compiled arms of static and balanced by name.

    As few as tell them apart: a program takes ten seconds to be made, and each arm has its own.
    """
    compiler = {"backend": size.backend}
    menu = {"kind": "static", "shapes": size.compiled, **compiler}
    arms: dict[str, tuple[str, dict[str, Any]]] = {
        "static, dynamic": ("static", {"kind": "dynamic", **compiler}),
        f"static, N = {size.compiled}": ("static", menu),
        f"balanced, N = {size.compiled}": ("balanced", menu),
    }
    return _beside_static(arms, size, work)


def graph_arms(size: Size, work: Path) -> dict[str, RunConfig]:
    """Return static, eager, and balanced with programs that are recorded as CUDA graphs, by name."""
    graphs = {"kind": "static", "shapes": size.compiled, "mode": "reduce-overhead"}
    name = f"balanced, N = {size.compiled}, CUDA graphs"
    return _beside_static({"balanced, eager": ("balanced", {}), name: ("balanced", graphs)}, size, work)


def _beside_static(arms: dict[str, tuple[str, dict[str, Any]]], size: Size, work: Path) -> dict[str, RunConfig]:
    _, world_size, global_batch = size.compiled_at
    shared = base("distilbert", size, work) | {
        "steps": size.steps_of(global_batch), "global_batch": global_batch, "world_size": world_size,
    }  # fmt: skip
    both = {"static": ("static", {}), AGAIN: ("static", {}), **arms}
    return {
        name: _named(name, {**shared, "policy": {"kind": policy}, "compile": table})
        for name, (policy, table) in both.items()
    }


def _named(name: str, values: dict[str, Any]) -> RunConfig:
    return parse({**values, "name": name.lower().replace(" = ", "-").replace(", ", "-").replace(" ", "-")})
