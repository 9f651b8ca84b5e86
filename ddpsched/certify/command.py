"""``ddpsched certify``: from the words on the command line to certificates, printed."""

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpsched.certify.certificate import Certificate
from ddpsched.certify.faults import named_fault
from ddpsched.config import RunConfig, apply_overrides, load, parse
from ddpsched.errors import ConfigError
from ddpsched.world import World

# what stands for a policy: ranks cannot share 13 samples evenly, and of 180 the last step gets fewer
SMALL: dict[str, Any] = {
    "name": "certify",
    "epochs": 1,
    "global_batch": 13,
    "data": {"size": 180},
    "executor": {"kind": "distributed", "timeout_s": 30.0},
}
POLICIES: dict[str, dict[str, Any]] = {  # what these need to make as small steps
    "minmax": {"prefetch": SMALL["global_batch"]},
    "token_budget": {"max_tokens_for_batch": 128, "batches_per_optimizer_step": 2},
    "bins": {"median_batch": 3},
    "pool": {"max_tokens_for_batch": 80},
}
WORLD_SIZE = 4


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options, as ``ddpsched certify --help`` tells them; ``words``: CONFIG, if any, then key=value."""

    words: tuple[str, ...]
    policy: str | None = None
    trainer: str | None = None
    loader: str | None = None
    loss: str | None = None
    world_size: int | None = None
    plant: str | None = None
    json: bool = False


def answer(request: Request) -> bool:
    """Certify and print; whether all of it holds. Raises ConfigError for options that do not go together."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ranks and their files go as at Ctrl-C
    certificates = certify(request)
    if request.json:
        told = [each.as_dict() for each in certificates]
        print(json.dumps(told[0] if len(told) == 1 else told, indent=2))
    else:
        from ddpsched.terminal import plain_console

        for each in certificates:
            plain_console().print(each.table())
    return all(each.holds for each in certificates)


def certify(request: Request) -> list[Certificate]:
    """The certificates asked for."""
    if World.launched():
        raise ConfigError("certify starts the ranks itself: run it as one process, not under torchrun")
    config, overrides = _split(request.words)
    subjects = {"CONFIG": config, "--policy": request.policy, "--trainer": request.trainer, "--loader": request.loader}
    given = [name for name, value in subjects.items() if value is not None]
    if len(given) != 1:
        raise ConfigError(f"give exactly one of {', '.join(subjects)}; got {' and '.join(given) or 'none'}")
    _check(request, given[0], overrides)
    if request.trainer is not None:
        return _of_trainer(request)
    if request.loader is not None:
        from ddpsched.certify.certify_loader import certify_loader

        return [certify_loader(request.loader, request.world_size or WORLD_SIZE)]
    own = load(config, overrides) if config is not None else _small(request, overrides)
    named_fault(request.plant, own)
    from ddpsched.certify.certify_run import certify_run  # torch, which mistakes on the command line need not wait for

    return [certify_run(own, request.plant)]


def _split(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """CONFIG is the first word, where that is no key=value."""
    if words and "=" not in words[0]:
        return words[0], list(words[1:])
    return None, list(words)


def _check(request: Request, subject: str, overrides: Sequence[str]) -> None:
    """Options that would have no effect are refused."""
    of_runs = subject in ("CONFIG", "--policy")
    if overrides and not of_runs:
        raise ConfigError(f"{overrides[0]!r}: key=value words belong to CONFIG and --policy, not to {subject}")
    if request.plant is not None and not of_runs:
        raise ConfigError(f"--plant belongs to CONFIG and --policy, not to {subject}")
    if request.loss is not None and subject != "--trainer":
        raise ConfigError(f"--loss belongs to --trainer, not to {subject}")
    if request.world_size is not None and subject == "CONFIG":
        raise ConfigError(f"a CONFIG names its ranks itself; write world_size={request.world_size} behind it")


def _small(request: Request, overrides: Sequence[str]) -> RunConfig:
    """A tiny model on the embedded sentences."""
    world_size = request.world_size or WORLD_SIZE
    policy = {"kind": request.policy, **POLICIES.get(request.policy or "", {})}
    values = {**SMALL, "world_size": world_size, "policy": policy}
    return parse(apply_overrides(values, overrides), source=f"--policy {request.policy}")


def _of_trainer(request: Request) -> list[Certificate]:
    if request.trainer != "transformers":
        raise ConfigError(f"--trainer {request.trainer}: only 'transformers' is known")
    from ddpsched.certify.certify_trainer import certify_trainer

    found = certify_trainer(request.world_size or 2, request.loss)
    return found if isinstance(found, list) else [found]
