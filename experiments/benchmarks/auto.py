"""Policy auto: the time of what it takes against the best of all its candidates, each measured, as Markdown.

    python -m experiments.benchmarks.auto DIR [--steps 60] [--models tiny distilbert-base-uncased] [--data sst2 gsm8k]
                                          [--ranks gloo virtual] [--global-batch 32]

DIR holds `sst2/`, `gsm8k/` and `bert-uncased/`. Each setting is one `ddpsched advise`, in which static, static again
(A/A) and all candidates run in turn; 2 gloo ranks or 4 virtual ones. Times are over static's: of
what was taken, of the fastest measured, and of A/A; then the largest error of a prediction, and whose it is; and the
time of choosing, with a measurement at hand, as a share of 300 steps of what was taken.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RANKS = {"gloo": (2, "distributed"), "virtual": (4, "virtual")}
DATA = {
    "sst2": ("sst2/train.tsv", {"text": "sentence"}, "classification"),
    "gsm8k": ("gsm8k/train.jsonl", {"text": "answer", "prompt": "question", "max_length": "256"}, "causal_lm"),
}
STEPS = 300  # of the run that choosing is held against
LANGUAGE_MODELS = {"distilbert-base-uncased": "distilgpt2"}  # of about the same size, where the task is another


def advice(folder: Path, model: str, data: str, ranks: str, steps: int, batch: int, output: Path) -> dict[str, Any]:
    """Return what `ddpsched advise` prints for a setting."""
    size, executor = RANKS[ranks]
    path, columns, task = DATA[data]
    config = output / "run.toml"
    config.write_text(f"steps = 100\nglobal_batch = {batch}\n")
    words = [
        f"world_size={size}", f"executor.kind={executor}", f"data.path={folder / path}", f"outputs={output}",
        f"data.tokenizer={folder / 'bert-uncased'}", f"model.task={task}",
        f"model.name={LANGUAGE_MODELS.get(model, model) if task == 'causal_lm' else model}",
        *(f"data.{key}={value}" for key, value in columns.items()),
    ]  # fmt: skip
    start = [sys.executable, "-m", "ddpsched"]
    if executor == "distributed":
        start = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={size}",
            "-m",
            "ddpsched",
        ]
    command = [*start, "advise", str(config), *words, "--steps", str(steps), "--first", "9", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{\n") :])
    return found


def line(setting: str, found: dict[str, Any]) -> str:
    """Return a line of the table."""
    measured = {each["name"]: each for each in found["measured"]}
    again = measured.pop("static again")["ratio"]
    predicted = {each["name"]: each["ratio"] for each in found["ranking"]}
    alike = {name: min(measured, key=lambda other: abs(predicted[other] - predicted[name])) for name in predicted}
    taken = 1.0 if found["chosen"] == "static" else measured[alike[found["chosen"]]]["ratio"]
    best = min(measured, key=lambda name: measured[name]["ratio"])
    least = min(1.0, measured[best]["ratio"])
    errors = {name: each["predicted"] / each["ratio"] - 1 for name, each in measured.items()}
    worst = max(errors, key=lambda name: abs(errors[name]))
    step_s = next(each["step_s"] for each in found["ranking"] if each["name"] == found["chosen"])
    cells = (
        setting, found["chosen"], f"{taken:.3f}", f"{best} {least:.3f}", f"{taken / least:.3f}", f"{again:.3f}",
        f"{errors[worst]:+.1%} ({worst})", f"{found['seconds'] / (STEPS * step_s):.2%}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Policy auto against the best of its candidates.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--models", nargs="+", default=["tiny", "distilbert-base-uncased"])
    parser.add_argument("--data", nargs="+", default=[*DATA], choices=[*DATA])
    parser.add_argument("--ranks", nargs="+", default=[*RANKS], choices=[*RANKS])
    parser.add_argument("--global-batch", type=int, default=32)
    given = parser.parse_args()
    heads = "model, data, ranks", "taken", "its time", "fastest measured", "taken / fastest", "A/A", "worst prediction"
    print(f"| {' | '.join(heads)} | choosing |\n|:--|:--|--:|:--|--:|--:|:--|--:|")
    for model, data, ranks in itertools.product(given.models, given.data, given.ranks):
        with tempfile.TemporaryDirectory() as output:
            found = advice(given.folder, model, data, ranks, given.steps, given.global_batch, Path(output))
        print(line(f"{model}, {data}, {RANKS[ranks][0]} {ranks}", found), flush=True)


if __name__ == "__main__":
    main()
