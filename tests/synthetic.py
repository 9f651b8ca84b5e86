"""Finished runs made of numbers, as a run would leave them, for tests of their readers."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddpsched.config import dump, parse, set_key
from ddpsched.records import RecordWriter, StepRecord, compact, write_json

ENVIRONMENT: dict[str, Any] = {
    "versions": {"python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.0"},
    "device": "cpu",
    "cpu": "Example CPU",
    "cores": 8,
    "threads": 1,
    "memory_bytes": 16 * 2**30,
    "platform": "Linux",
    "commit": None,
    "data": "SST-2 train, 67349 rows",
    "num_samples": 67349,
    "num_truncated": 0,
    "num_parameters": 66955010,
    "caps": None,
}


SEEDS = (0, 1, 2)


def write_arm(study: Path, policy: str, name: str = "", aa: bool = False, **given: Any) -> None:
    """Write an arm's run in each of three launches; ``aa``: and the same arm's second run."""
    for seed in SEEDS:
        stem = name or f"{policy}-{given.get('mode', 'distributed')}-g{given.get('world_size', 2)}"
        write_run(study, policy, seed=seed, name=f"{stem}-s{seed}", **given)
        if aa:
            options = {**(given.get("options") or {}), "aa": True}
            write_run(study, policy, seed=seed, name=f"{stem}-s{seed}-aa", **{**given, "options": options})


def write_run(
    study: Path,
    policy: str,
    seed: int = 0,
    steps: int = 60,
    world_size: int = 2,
    mode: str = "distributed",
    slower: float = 1.0,
    state: str = "done",
    environment: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    prefetch: int = 24,
    name: str | None = None,
    options: dict[str, Any] | None = None,
) -> Path:
    """Write a run's folder.

    ``slower`` multiplies compute time; columns in ``drop`` are null; ``options`` have dotted keys.
    """
    name = name or f"{policy}-{mode}-g{world_size}-s{seed}"
    table = {"kind": policy, **({"prefetch": prefetch} if policy == "minmax" else {})}
    values = {
        "name": name, "study": study.name, "outputs": str(study.parent), "seed": seed, "steps": steps,
        "world_size": world_size, "policy": table, "executor": {"kind": mode},
    }  # fmt: skip
    for key, value in (options or {}).items():
        set_key(values, key, value)
    resolved = parse(values)
    folder = study / name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(dump(resolved), encoding="utf-8")
    launch = {"how": "interleaved", "id": f"seed {seed}", "margin": 0.02}  # a launch for each seed
    write_json(folder / "environment.json", ENVIRONMENT | {"launch": launch} | (environment or {}))
    reason = "it was stopped" if state == "failed" else None
    write_json(folder / "status.json", {"state": state, "reason": reason, "started": "", "finished": None, "wall_s": 1})
    nulls: dict[str, Any] = dict.fromkeys(drop)
    records = [
        replace(row, run=name, **nulls) for row in rows(policy, seed, steps, world_size, mode, slower, resolved.aa)
    ]
    for rank in range(world_size):
        with closing(RecordWriter(folder, rank)) as writer:
            for row in records:
                if row.rank == rank:
                    writer.write(row)
    if state == "done":
        compact(folder)
    if mode != "simulated":
        line = f'{{"step": {steps}, "loss": 0.4, "accuracy": 0.82, "num_samples": 872, "majority": 0.51}}\n'
        (folder / "evaluations.jsonl").write_text(line, encoding="utf-8")
    return folder


def put_on_one_clock(folder: Path, exposed_s: float = 0.004, uncertainty_s: float = 5e-5, files: bool = True) -> Path:
    """Give a run of ``write_run`` a common clock and, with ``files``, timeline files; its ranks' compute stays.

    All ranks begin a step together and have all gradients ``exposed_s`` after the last of them is ready. Three buckets
    are launched at a half, three quarters and the end of a rank's compute; 3 MiB takes ``exposed_s``.
    """
    table = pd.read_parquet(folder / "records.parquet").sort_values(["step", "rank"])
    table[["wait_s", "step_s"]] += exposed_s
    began_s, lines = 0.0, []
    for _, step in table.groupby("step"):
        launched = {(rank, part): began_s + part * s for rank, s in zip(step["rank"], step["compute_s"], strict=True)
                    for part in (0.5, 0.75, 1.0)}  # fmt: skip
        done = [max(at for (_, part), at in launched.items() if part == p) + exposed_s for p in (0.5, 0.75, 1.0)]
        for row in step.itertuples():
            launches = [launched[row.rank, part] for part in (0.5, 0.75, 1.0)]
            table.loc[row.Index, ["began_at_s", "comm_s"]] = began_s, min(done[-1] - launches[0], 3 * exposed_s)
            half, ready = row.num_samples // 2, began_s + row.compute_s
            middle = began_s + half / row.num_samples * row.compute_s
            micro = [
                [a, a + 0.05 * (b - a), a + 0.4 * (b - a), b] for a, b in ((began_s, middle), (middle, ready)) if b > a
            ]
            moved = [[f"bucket {i}", 3 * 2**20, launches[i], done[i]] for i in range(3)]
            end = {"ready": ready, "done": began_s + row.compute_s + row.wait_s}
            lines.append((row.rank, {"step": row.step, "microbatches": micro, "collectives": moved, **end}))
        began_s += step["step_s"].max()
    table.to_parquet(folder / "records.parquet")
    ranks = sorted(set(table["rank"]))
    clocks = [{"rank": r, "offset_s": 0.125 * r, "uncertainty_s": uncertainty_s if r else 0.0} for r in ranks]
    write_json(folder / "environment.json", ENVIRONMENT | {"clocks": clocks})
    for rank in ranks if files else []:
        text = "".join(json.dumps(line) + "\n" for r, line in lines if r == rank)
        (folder / f"timeline-rank{rank}.jsonl").write_text(text, encoding="utf-8")
    return folder


def rows(
    policy: str, seed: int, steps: int, world_size: int, mode: str, slower: float, aa: bool = False
) -> list[StepRecord]:
    """Return steps of 32 samples with SST-2-like lengths; 90 ms and 2.6 ms a padded token, with noise."""
    order = np.random.default_rng(seed).lognormal(2.4, 0.6, 32 * steps + 64).round().clip(3, 66).astype(int).tolist()
    noise = np.random.default_rng([seed, len(policy), *([1] if aa else [])])
    measured = mode != "simulated"
    queue, windows = iter(order), [[] for _ in range(world_size)]
    found: list[StepRecord] = []
    for step in range(steps):
        shares = split(policy, queue, windows, world_size)
        padded = [len(share) * max(share) for share in shares]
        compute = [slower * (0.09 + 0.0026 * cost) * (1 + 0.02 * abs(noise.normal())) for cost in padded]
        loss = float(0.4 + 0.3 * np.exp(-step / 50))
        for rank, share in enumerate(shares):
            found.append(
                StepRecord(
                    run="", mode=mode, policy=policy, seed=seed, epoch=0, step=step, rank=rank, world_size=world_size,
                    num_samples=len(share), global_batch=32, num_tokens=sum(share), padded_tokens=padded[rank],
                    squared_tokens=sum(length**2 for length in share),
                    max_length=max(share), num_microbatches=1, loss_scale=world_size * len(share) / 32,
                    predicted_cost=padded[rank], lower_bound=max(padded), offer_s=2e-4, exchange_s=3e-4, solve_s=1e-4,
                    plan_wait_s=5e-5, compute_s=compute[rank], cpu_s=compute[rank] if measured else None,
                    wait_s=max(compute) - compute[rank], vote_s=1e-4, optimizer_s=0.02,
                    step_s=max(compute) + 0.025, lr=1e-5,
                    peak_memory_bytes=2**30 + 50_000 * padded[rank] if measured else None,
                    loss=loss + (0.01 if policy == "minmax" else 0) if measured else None,
                )
            )  # fmt: skip
    return found


def split(policy: str, queue: Any, windows: list[list[int]], world_size: int) -> list[list[int]]:
    """Return the lengths of each rank's samples in one step, nearly as the policy would assign them."""
    if policy != "minmax":
        batch = [next(queue) for _ in range(32)]
        if policy == "static":
            return [batch[rank::world_size] for rank in range(world_size)]
        batch.sort()
        for budget in range(max(batch), 32 * max(batch) + 1):
            shares = greedy(batch, budget)
            if len(shares) <= world_size:
                return shares + [[shares[0].pop()] for _ in range(world_size - len(shares))]
    for window in windows:
        while len(window) < 32 // world_size + 8:
            window.append(next(queue, 10))
    costs = [np.maximum.accumulate(w) * np.arange(1, len(w) + 1) for w in windows]
    budget = min(t for t in np.unique(costs) if sum(np.searchsorted(c, t, "right") for c in costs) >= 32)
    counts = [max(1, int(np.searchsorted(c, budget, "right"))) for c in costs]
    while sum(counts) > 32:
        counts[int(np.argmax(counts))] -= 1
    return [[window.pop(0) for _ in range(count)] for window, count in zip(windows, counts, strict=True)]


def greedy(lengths: list[int], budget: int) -> list[list[int]]:
    """Return contiguous groups of rising lengths with count * longest <= budget."""
    groups: list[list[int]] = []
    for length in reversed(lengths):
        if groups and groups[-1][0] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(length)
        else:
            groups.append([length])
    return groups


def write_virtual(folder: Path, slower: float = 1.0, packed: bool = True) -> Path:
    """Write a study like the report's on virtual ranks; ``slower``: balanced and ``packed``, if there, by so much."""
    virtual: dict[str, Any] = {"mode": "virtual", "world_size": 4, "steps": 40}
    write_arm(folder, "static", aa=True, **virtual)
    write_arm(folder, "minmax", **virtual)
    write_arm(folder, "peer", options={"policy.peer": "batch_rebalance"}, **virtual)
    for policy in ("balanced", *["packed"] * packed):
        write_arm(folder, policy, slower=slower, **virtual)
    return folder


def write_unequal(folder: Path) -> Path:
    """Write a study like the report's of two ranks, of which one is slow."""
    for slowness in ([1.0, 1.5], [1.0, 2.0]):
        options = {"executor.slowness": slowness}
        online = options | {"cost.kind": "affine_quadratic", "cost.beta": 0.001, "cost.online": True}
        name = f"g2-{slowness[-1]:g}"
        write_arm(folder, "static", f"static-{name}", aa=True, steps=20, options=options)
        write_arm(folder, "balanced", f"balanced-{name}", steps=20, options=options)
        write_arm(folder, "balanced", f"online-{name}", steps=20, slower=0.5, options=online)
    return folder
