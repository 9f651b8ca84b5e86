"""``ddpsched plan``: from the options to the table, the JSON, the figure and the exported plan."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.compare.arms import Question, arms, fitted
from ddpsched.compare.comparison import compared
from ddpsched.compare.export import SUFFIXES, export
from ddpsched.data.laws.length_laws import law_lengths, law_named, length_laws
from ddpsched.data.length_files import read_lengths
from ddpsched.errors import ConfigError
from ddpsched.peers import PEERS
from ddpsched.step_plan import Ids
from ddpsched.visible_text import visible

MOST_PLANNED = 10**9  # samples: an hour or more
DRAWN = 65_536  # samples of a law: 1,024 steps of 64, and still planned in seconds


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of ``ddpsched plan``, as its help describes them."""

    lengths: Path | None = None
    law: str | None = None
    samples: int | None = None
    column: str | None
    texts: tuple[str, ...]
    prompt: str | None = None
    tokenizer: str | None
    max_length: int | None
    world_size: int
    global_batch: int
    policies: tuple[str, ...]
    max_microbatches: int | None
    max_tokens: int | None
    lookahead: int
    epochs: int
    seed: int
    prefetch: int | None
    alpha: float
    gamma: float
    gather_alpha: float
    gather_beta: float
    calibration: str | None
    memory: int | None
    peers: tuple[str, ...]
    json: bool
    figure: Path | None
    export: Path | None


def answer(request: Request) -> None:
    """Plan, and print what was asked for. Raises ConfigError and DataError before anything is written."""
    question, name = _question(request)
    law = None if request.law is None else str(law_named(request.law))
    _check(request, question)
    comparison = compared(question, request.policies, request.peers, name)
    if request.json:
        rows = [
            {key: None if _is_nan(value) else value for key, value in row.flat().items()} for row in comparison.rows
        ]
        last = comparison.recommendation
        print(json.dumps({"title": comparison.title, "law": law, "rows": rows, "recommendation": last}, indent=2))
    else:
        print(comparison if law is None else f"{law}\n{comparison}")
    if request.figure is not None:
        from ddpsched.compare.show import draw

        draw(comparison.rows, comparison.title, request.figure)
    if request.export is not None:
        ((_, arm),) = arms(question, request.policies).items()
        count = export(question, fitted(question, arm), request.export)
        if not request.json:
            print(visible(f"{count:,} rows written to {request.export}"))


def _question(request: Request) -> tuple[Question, str]:
    """Return the question, and for the title the name of its lengths, with how many of them are cut."""
    uncut, name = _lengths(request)
    most = request.max_length or (512 if request.texts else int(uncut.max()))
    lengths = np.minimum(uncut, most)
    if (planned := request.epochs * len(lengths)) > MOST_PLANNED:
        raise ConfigError(
            f"--epochs {request.epochs} of {len(lengths)} samples: {planned:,} samples to plan, at most "
            f"{MOST_PLANNED:,}; an epoch or two show what each policy gains"
        )
    cost: dict[str, Any] = {"kind": "padded_tokens", "alpha": request.alpha, "gamma": request.gamma}
    memory = None
    if request.calibration is not None:
        if request.alpha or request.gamma:
            raise ConfigError("--alpha and --gamma are padded tokens, a --calibration has seconds; give one of them")
        cost = {"kind": "calibrated", "path": request.calibration}
    cost |= {"gather_alpha": request.gather_alpha, "gather_beta": request.gather_beta}
    if request.memory is not None:
        if request.calibration is None:
            raise ConfigError("--memory needs --calibration, whose memory model gives the bytes of a micro-batch")
        memory = {"path": request.calibration, "budget_bytes": request.memory}
    numbers = ("world_size", "global_batch", "max_microbatches", "lookahead", "prefetch", "epochs", "seed")
    given = {name: getattr(request, name) for name in numbers}
    question = Question(lengths, cost=cost, memory=memory, max_tokens=request.max_tokens, **given)
    num_cut = int((uncut > most).sum())
    return question, f"{name} ({num_cut:,} cut to {most} tokens)" if num_cut else name


def _lengths(request: Request) -> tuple[Ids, str]:
    """Return the lengths of a file or of a law, uncut, and their name. Raises ConfigError and DataError."""
    file, law = request.lengths, request.law
    if law is None:
        if file is None:
            raise ConfigError(f"no lengths: give a file of them, or --law {' | '.join(length_laws())}")
        if request.samples is not None:
            raise ConfigError(f"--samples {request.samples} is for --law; {file} has samples of its own, leave it out")
        return read_lengths(file, request.column, request.texts, request.tokenizer, request.prompt), file.name
    if file is not None:
        raise ConfigError(f"{file} and --law {law}: lengths are those of a file or of a law; give one of them")
    given = {
        "--column": request.column,
        "--text": request.texts,
        "--prompt": request.prompt,
        "--tokenizer": request.tokenizer,
    }
    if of_files := [option for option, value in given.items() if value]:
        raise ConfigError(f"{', '.join(of_files)}: a law has no columns or texts; give a file in place of --law {law}")
    count = DRAWN if request.samples is None else request.samples
    return law_lengths(law, count, request.seed), law_named(law).title


def _check(request: Request, question: Question) -> None:
    """Raise ConfigError for requests that cannot be met, before an epoch is planned."""
    if "peer" in request.policies:
        raise ConfigError("--policy peer: give another package's batching by --peer NAME, beside the policies")
    for name in request.peers:
        if name not in (*PEERS, "all"):
            raise ConfigError(f"--peer {name!r} is none of: {', '.join(PEERS)}, all")
    of_peers = any(name == "all" or PEERS[name].splits for name in request.peers)  # which take --max-tokens as well
    for option, value, users in (
        ("--max-microbatches", question.max_microbatches or 1, ["balanced"]),
        ("--lookahead", question.lookahead, ["balanced", "packed"]),
        ("--max-tokens", 1 if of_peers else question.max_tokens or 1, ["split"]),
    ):
        if value > 1 and request.policies and not set(request.policies) & set(users):
            raise ConfigError(f"{option} {value} is for {' and '.join(users)}, not {', '.join(request.policies)}")
    if request.export is not None and len(set(request.policies)) != 1:
        raise ConfigError("--export writes the plans of one policy; name it, as in --policy balanced")
    for path in (request.figure, request.export):
        if path is not None and path.is_dir():
            raise ConfigError(f"{path}: this is a folder; give the name of a file in it")
        if path is not None and not path.resolve().parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.resolve().parent}; make it first")
    if request.export is not None and request.export.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--export {request.export}: give a name that ends in {' or '.join(SUFFIXES)}")
    if request.figure is not None and request.figure.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--figure {request.figure}: give a name that ends in .png, .svg or .pdf")


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
