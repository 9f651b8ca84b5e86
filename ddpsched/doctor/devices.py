"""Processors, memory, GPUs, and NCCL where there are GPUs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ddpsched.doctor.finding import Finding, Setting, why_failed
from ddpsched.local_ranks import Outcome, run_ranks
from ddpsched.machine import free_memory, num_processors, processor_limit

GIB = 2**30
LEAST_FREE = 2 * GIB  # two ranks with torch and a small model
LIMIT_S = 15.0
TORCH = 'python -c "import torch" shows whether torch can be loaded; install it again where it cannot'


@dataclass(frozen=True)
class Machine:
    """Processors and memory. ``limit``: a container's, in processors. ``omp_threads``: OMP_NUM_THREADS, if set."""

    processors: int
    limit: float | None
    free_bytes: int | None
    omp_threads: str | None


@dataclass(frozen=True)
class Torch:
    """The devices that torch sees in a rank's process.

    ``gpus``: name, free and total bytes of each. ``cudnn``: whether attention on them runs by cuDNN.
    """

    threads: int
    gpus: tuple[tuple[str, int, int], ...]
    nccl: bool
    cudnn: bool = False


def check(_: Setting) -> list[Finding]:
    """Return the findings on processors and memory."""
    machine = Machine(num_processors(), processor_limit(), free_memory(), os.environ.get("OMP_NUM_THREADS"))
    return [judge_processors(machine), judge_memory(machine)]


def judge_processors(machine: Machine) -> Finding:
    """Return the finding on processors and the threads that a process may start on them."""
    usable = min(machine.processors, machine.limit or machine.processors)
    limit = "" if machine.limit is None else f", of whose time a container's limit allows {machine.limit:g}"
    says, numbers = f"{machine.processors} processor(s) usable{limit}", {"usable": usable}
    if usable < 2:
        remedy = "ranks would take turns on it: use executor.kind=virtual, or more processors (container: --cpus=2)"
        return Finding("processors", "warn", f"{says}: fewer than two ranks need", remedy, numbers)
    threads = machine.omp_threads or ""
    if threads.isdigit() and int(threads) > usable / 2:
        says += f"; OMP_NUM_THREADS = {threads}, more than half of them, so that two ranks share processors"
        return Finding("processors", "warn", says, "unset OMP_NUM_THREADS: torchrun then gives a rank 1", numbers)
    return Finding("processors", "ok", says, numbers=numbers)


def judge_memory(machine: Machine) -> Finding:
    """Return the finding on free memory."""
    if machine.free_bytes is None:
        return Finding("memory", "skip", "this system does not show how much is free")
    says, numbers = f"{machine.free_bytes / GIB:.1f} GiB free", {"free_bytes": float(machine.free_bytes)}
    if machine.free_bytes < LEAST_FREE:
        remedy = "end other programs, or raise the container's limit (--memory)"
        return Finding("memory", "warn", f"{says}: two ranks need {LEAST_FREE / GIB:.0f} GiB", remedy, numbers)
    return Finding("memory", "ok", says, numbers=numbers)


def check_gpus(_: Setting) -> list[Finding]:
    """Return the findings on torch's threads and GPUs, and on NCCL where there are any."""
    try:
        (seen,) = run_ranks(_seen, 1, timeout_s=LIMIT_S, limit_s=LIMIT_S)
    except (EOFError, ConnectionError):
        return [Finding("torch", "fail", "the process that loads torch died", TORCH)]
    if seen.ended != "answered":
        return [Finding("torch", "fail", why_failed([seen]), TORCH)]
    torch: Torch = seen.value
    findings = judge_torch(torch)
    if torch.gpus and torch.nccl:
        ranks = min(2, len(torch.gpus))
        outcomes = run_ranks(_sum_over_gpus, ranks, timeout_s=LIMIT_S, limit_s=2 * LIMIT_S)
        findings.append(judge_nccl(outcomes))
    return findings


def judge_torch(seen: Torch) -> list[Finding]:
    """Return the findings on what torch sees."""
    findings = [Finding("torch", "ok", f"loaded; {seen.threads} thread(s) a rank", numbers={"threads": seen.threads})]
    if not seen.gpus:
        return [*findings, Finding("GPUs", "skip", "torch sees none: ranks compute on processors, and meet by gloo")]
    says = ", ".join(f"{name}: {free / GIB:.1f} of {all_ / GIB:.1f} GiB free" for name, free, all_ in seen.gpus)
    busy = [number for number, (_, free, all_) in enumerate(seen.gpus) if free < all_ / 2]
    if busy:
        remedy = f"end other programs on GPU {busy[0]} (nvidia-smi), or hide it by CUDA_VISIBLE_DEVICES"
        findings.append(Finding("GPUs", "warn", f"{says}: less than half is free", remedy))
    else:
        findings.append(Finding("GPUs", "ok", says, numbers={"count": float(len(seen.gpus))}))
    if seen.cudnn:
        says = "cuDNN's makes a plan for each new shape of a micro-batch, ten times as long as the micro-batch itself"
        remedy = "in loops of your own call torch.backends.cuda.enable_cudnn_sdp(False); ddpsched run does so"
        findings.append(Finding("attention", "warn", says, remedy))
    if not seen.nccl:
        remedy = "install torch's CUDA build, or train with executor.device=cpu"
        findings.append(Finding("NCCL", "fail", "this torch has no NCCL, which ranks on GPUs need", remedy))
    return findings


def judge_nccl(outcomes: Sequence[Outcome]) -> Finding:
    """Return the finding on an all-reduce over GPUs."""
    expected = float(sum(range(1, len(outcomes) + 1)))
    if any(each.ended != "answered" for each in outcomes):
        remedy = "set NCCL_DEBUG=INFO and run a launch of two ranks, or train with executor.device=cpu"
        return Finding("NCCL", "fail", why_failed(outcomes), remedy)
    sums = [each.value for each in outcomes]
    if sums != [expected] * len(sums):
        remedy = "set NCCL_P2P_DISABLE=1 and repeat; keep it where the sum is then right"
        return Finding("NCCL", "fail", f"an all-reduce of {len(sums)} GPU(s) gave {sums}, expected {expected}", remedy)
    return Finding("NCCL", "ok", f"an all-reduce of {len(sums)} GPU(s) gave the right sum")


def _seen() -> Torch:
    import torch
    import torch.distributed as dist

    from ddpsched.training.attention import PREFERS_CUDNN

    gpus, cudnn = [], False
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(number)
        gpus.append((torch.cuda.get_device_name(number), free, total))
        cudnn |= torch.cuda.get_device_capability(number) >= PREFERS_CUDNN
    cudnn &= torch.backends.cuda.cudnn_sdp_enabled()
    return Torch(torch.get_num_threads(), tuple(gpus), dist.is_nccl_available(), cudnn)


def _sum_over_gpus() -> float:
    """Return the sum over ranks of their number, from 1; each has a GPU."""
    import torch
    import torch.distributed as dist

    from ddpsched.training.group_exchange import start_group
    from ddpsched.world import World

    world = World.detect()
    device = torch.device("cuda", world.local_rank)
    start_group(device, world, LIMIT_S)
    number = torch.tensor([world.rank + 1.0], device=device)
    dist.all_reduce(number)
    return float(number)
