"""``python -m experiments.certificates``: the certificates of report/notes/gradients.md, a row each, as Markdown.

Training loops with and without their factor; then ddpsched's policies, executors and synchronisers, five planted
faults, and transformers' Trainer with its loss and with an exact one. Exit code 0 where everything that should hold
does, and each fault is found.
"""

import argparse
import sys
from collections.abc import Iterable

from ddpsched.certify.certificate import Certificate, Check
from ddpsched.certify.command import Request, certify
from ddpsched.certify.faults import FAULTS
from ddpsched.cli import guarded
from experiments import loops

POLICIES = {
    "static": [], "minmax": [], "balanced": [], "balanced, M = 4": ["policy.max_microbatches=4"], "packed": [],
    "token_budget": [], "bins": [], "pool": [], "pool, packed": ["policy.sequence_packing=true"],
}  # fmt: skip
FIXED = "ddpsched.integrations.losses:summed_cross_entropy"
SAYS = "the certificates of report/notes/gradients.md, a row each, as Markdown; takes minutes"
Row = tuple[str, bool, Certificate]  # subject, whether it should hold, its certificate


def ours() -> Iterable[Row]:
    """Yield rows of policies on 1, 2 and 4 gloo ranks, and of balanced with each synchroniser and on virtual ranks."""
    for world_size in (1, 2, 4):
        for name, words in POLICIES.items():
            request = Request(words=tuple(words), policy=name.partition(",")[0], world_size=world_size)
            yield f"{name}, G = {world_size}, ddp", True, certify(request)[0]
    for kind in ("naive", "overlap", "bucketed", "fsdp"):
        request = Request(words=(f"sync.kind={kind}", *POLICIES["balanced, M = 4"]), policy="balanced", world_size=2)
        yield f"balanced, M = 4, G = 2, {kind}", True, certify(request)[0]
    yield "balanced, G = 4, virtual", True, certify(Request(words=("executor.kind=virtual",), policy="balanced"))[0]


def faults() -> Iterable[Row]:
    """Yield a row for each fault, planted in the same run of two ranks."""
    for fault in FAULTS:
        yield f"planted: {fault}", False, certify(Request(words=(), policy="balanced", world_size=2, plant=fault))[0]


def trainers() -> Iterable[Row]:
    """Yield rows of transformers' Trainer, with its loss and with an exact one."""
    for loss, holds in ((None, False), (FIXED, True)):
        for certificate in certify(Request(words=(), trainer="transformers", world_size=2, loss=loss)):
            yield certificate.subject + (", summed_cross_entropy" if loss else ""), holds, certificate


def line(name: str, certificate: Certificate) -> str:
    """Return a row of the table as Markdown."""
    failed = [check for check in certificate.checks if not check.holds and not (check.cause or "").startswith("see")]
    verdict = "; ".join(map(blame, failed)) or "holds"
    return f"| {name} | {numbers(certificate)} | {verdict.replace('|', '/')} |"


def numbers(certificate: Certificate) -> str:
    """Return relative error, cosine and best scale of the gradient, as three cells."""
    figures = next((check.numbers for check in certificate.checks if check.numbers), {})
    forms = {"relative_error": ".1e", "cosine": ".6f", "best_scale": ".4g"}
    return " | ".join(f"{figures[key]:{form}}" if key in figures else "–" for key, form in forms.items())


def blame(check: Check) -> str:
    """Return what a failed check found, with its cause; the cause alone where its numbers have columns."""
    cause = (check.cause or "").partition(". In numbers")[0].replace("*", r"\*")
    return (
        f"*{check.name}*: {cause}" if check.numbers else f"*{check.name}*: {check.says}" + f" ({cause})" * bool(cause)
    )


def main() -> int:
    """Print both tables; return 1 where something that should hold does not, or a fault is not found."""
    argparse.ArgumentParser(prog="python -m experiments.certificates", description=SAYS).parse_args()
    wrong: list[str] = []

    def body() -> None:
        print("| loop, unequal micro-batches | relative error | cosine | best scale | with its factor |")
        print("|:--|--:|--:|--:|--:|")
        for name, without, mended in loops.certificates():
            print(f"| {name} | {numbers(without)} | {numbers(mended).partition(' |')[0]} |", flush=True)
            wrong.extend([name] * (without.holds or not mended.holds))
        print("\n| subject | relative error | cosine | best scale | verdict, and the likely cause |")
        print("|:--|--:|--:|--:|:--|")
        for part in (ours, faults, trainers):
            for name, holds, certificate in part():
                print(line(name, certificate), flush=True)
                if certificate.holds != holds:
                    wrong.append(name)

    code = guarded(body)
    for name in wrong:
        print(f"not as expected, see its row above: {name}", file=sys.stderr)
    return code or int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
