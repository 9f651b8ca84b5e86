"""``ddpsched certify``: read the options, certify, and print the certificates."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpsched.certify.certificate import Certificate
from ddpsched.certify.faults import named_fault
from ddpsched.command_exit import terminable
from ddpsched.config import apply_overrides, load, parse
from ddpsched.denominators import BY_GROUP, check_target
from ddpsched.errors import ConfigError
from ddpsched.world import World

# the run of --policy: ranks cannot share 13 samples evenly, and of 180 the last step gets fewer
SMALL: dict[str, Any] = {
    "name": "certify",
    "epochs": 1,
    "global_batch": 13,
    "data": {"size": 180},
    "executor": {"kind": "distributed", "timeout_s": 30.0},
}
POLICIES: dict[str, dict[str, Any]] = {  # what these need to make steps as small
    "minmax": {"prefetch": SMALL["global_batch"]},
    "token_budget": {"max_tokens_for_batch": 128, "batches_per_optimizer_step": 2},
    "bins": {"median_batch": 3},
    "pool": {"max_tokens_for_batch": 80},
    "split": {"max_tokens": 24},
}
WORLD_SIZE = 4


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of ``ddpsched certify``. ``words``: CONFIG, if any, then key=value overrides."""

    words: tuple[str, ...]
    policy: str | None = None
    trainer: str | None = None
    loader: str | None = None
    loss: str | None = None
    target: str | None = None
    world_size: int | None = None
    plant: str | None = None
    json: bool = False


def answer(request: Request) -> bool:
    """Certify, print the certificates, and return whether all of them hold. Raises ConfigError as ``certify`` does."""
    with terminable():
        certificates = certify(request)
    if request.json:
        values = [each.as_dict() for each in certificates]
        print(json.dumps(values[0] if len(values) == 1 else values, indent=2))
    else:
        from ddpsched.terminal import plain_console

        for each in certificates:
            plain_console().print(each.table())
    return all(each.holds for each in certificates)


def certify(request: Request) -> list[Certificate]:
    """Return the certificates that are asked for. Raises ConfigError for options that do not go together."""
    if World.launched():
        raise ConfigError("certify starts the ranks itself: run it as one process, not under torchrun")
    words = list(request.words)
    config = words.pop(0) if words and "=" not in words[0] else None
    if request.target is not None and not any((config, request.policy, request.trainer, request.loader)):
        request = replace(request, policy="balanced")
    subjects = {"CONFIG": config, "--policy": request.policy, "--trainer": request.trainer, "--loader": request.loader}
    given = [name for name, value in subjects.items() if value is not None]
    if len(given) != 1:
        raise ConfigError(f"give exactly one of {', '.join(subjects)}; got {' and '.join(given) or 'none'}")
    _check(request, given[0], words)
    # the imports below need torch, which mistakes on the command line should not wait for
    if request.trainer is not None:
        from ddpsched.certify.certify_trainer import certify_trainer

        make = None if request.trainer == "transformers" else request.trainer
        return certify_trainer(request.world_size or 2, request.loss, make)
    world_size = request.world_size or WORLD_SIZE
    if request.loader is not None:
        from ddpsched.certify.certify_loader import certify_loader

        return [certify_loader(request.loader, world_size)]
    if config is not None:
        run = load(config, [f"train.target={request.target}"] * (request.target is not None) + words)
    else:
        policy = {"kind": request.policy, **POLICIES.get(str(request.policy), {})}
        values = {**SMALL, **_of_target(request.target), "world_size": world_size, "policy": policy}
        run = parse(apply_overrides(values, words), source=f"--policy {request.policy}")
    named_fault(request.plant, run)
    from ddpsched.certify.certify_run import certify_run

    return [certify_run(run, request.plant)]


def _of_target(target: str | None) -> dict[str, Any]:
    """Return the keys of a run of --policy that has this target: a language model on embedded sentences.

    Four of these are a group. Without a target it is a classifier.
    """
    if target is None:
        return {}
    train: dict[str, Any] = {"target": target} | ({"length": 16.0} if target == "constant_length" else {})
    data = {"size": 180} | ({"group": "group"} if target in BY_GROUP else {})
    return {"model": {"task": "causal_lm"}, "train": train, "data": data}


def _check(request: Request, subject: str, overrides: Sequence[str]) -> None:
    """Refuse options that would have no effect, and trainers that cannot be found."""
    if subject in ("--trainer", "--loader"):
        if overrides:
            raise ConfigError(f"{overrides[0]!r}: key=value words belong to CONFIG and --policy, not to {subject}")
        if request.plant is not None:
            raise ConfigError(f"--plant belongs to CONFIG and --policy, not to {subject}")
    if request.target is not None:
        check_target(request.target, "--target")
        if subject in ("--trainer", "--loader"):
            raise ConfigError(f"--target belongs to CONFIG and --policy, not to {subject}")
    if request.loss is not None and subject != "--trainer":
        raise ConfigError(f"--loss belongs to --trainer, not to {subject}")
    if request.world_size is not None and subject == "CONFIG":
        raise ConfigError(f"a CONFIG has its own number of ranks; write world_size={request.world_size} behind it")
    if request.trainer not in (None, "transformers") and ":" not in str(request.trainer):
        raise ConfigError(
            f"--trainer {request.trainer}: give 'transformers', or module:function, which takes what its Trainer takes "
            "and returns one"
        )
