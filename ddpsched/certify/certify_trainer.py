"""Certification of transformers' ``Trainer``, or yours: what it makes of a tiny DistilBERT classifier on real ranks.

The loader, loss, synchronisation and checkpoints are Trainer's. The data is made here: the first token of a sample is
its number, so that what a rank runs is read from what its model gets.
"""

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ddpsched.arguments import function_named
from ddpsched.certify.capture import capture_gradient, counted, counts_of
from ddpsched.certify.certificate import Certificate, Check
from ddpsched.certify.gradient_comparison import TOLERANCES, compare
from ddpsched.certify.reference import reference
from ddpsched.certify.step_reference import logits_of, row_losses
from ddpsched.certify.stream_checks import exactly_once, resumption, same_collectives, same_counts
from ddpsched.errors import ConfigError, DdpschedError, RankFailure
from ddpsched.local_ranks import answers, join_group, run_ranks
from ddpsched.training.random_states import kept_random_states

Inputs = dict[str, torch.Tensor]
Make = Callable[..., Any]  # takes what Trainer takes, and returns one
Loss = Callable[..., torch.Tensor]

PER_DEVICE = 5  # samples of a micro-batch
STEPS = 4  # optimizer steps of an epoch; a checkpoint in the middle of each
EPOCHS = 2
WORDS = 200  # tokens that are no sample's number
FIX = "Trainer(compute_loss_func=ddpsched.integrations.losses.summed_cross_entropy)"
HEAD = (
    "forward takes **kwargs, so Trainer believes that the head divides by num_items_in_batch, and multiplies the loss "
    f"by the number of processes; the head takes a plain mean{{}}. Exact: {FIX}"
)
FUNCTION = (
    "Trainer multiplies what compute_loss_func returns by the number of processes, and divides it by nothing: return "
    f"the sum over the labels divided by num_items_in_batch, as in {FIX}"
)
LATER = "NOT in the verdict: its sampler does not get the epoch and keeps the first one's order; save between epochs"


@dataclass(frozen=True)
class Case:
    """One way to run Trainer. ``extra``: samples beyond what steps divide; ``arguments``: for TrainingArguments."""

    name: str
    accumulation: int = 1
    extra: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)

    def num_samples(self, world_size: int) -> int:
        """Return the samples of all its steps."""
        return PER_DEVICE * self.accumulation * world_size * STEPS + self.extra


CASES = (
    Case("equal batches"),
    Case("equal batches, accumulation of 2", accumulation=2),
    Case("unequal batches (batch_rebalance)", arguments={"train_sampling_strategy": "batch_rebalance"}),
)
OF_YOURS = (Case("batches", extra=3), Case("batches, accumulation of 2", accumulation=2, extra=3))


@dataclass(frozen=True)
class TrainerStep:
    """One rank's optimizer step: the ids of each micro-batch, and the gradient, (P,), right before the optimizer.

    A stand-in of a rank without samples is no micro-batch.
    """

    microbatches: list[list[int]]
    gradient: np.ndarray


@dataclass(frozen=True)
class Ran:
    """One rank's ``steps`` of both epochs, and ``resumed[at]``: those after the checkpoint behind step ``at``."""

    steps: list[TrainerStep]
    resumed: dict[int, list[TrainerStep]]


def certify_trainer(world_size: int, loss: str | None = None, make: str | None = None) -> list[Certificate]:
    """Certify Trainer on equal batches, with accumulation, and on unequal batches.

    ``make``: ``"module:function"``, which takes what Trainer takes, by name, and returns a Trainer of yours; it runs
    with and without accumulation, on samples that steps do not divide. ``loss``: ``"module:function"`` for
    ``compute_loss_func``; without it the model's head computes the loss. The target of a loss function, or of your
    Trainer's ``compute_loss``, is the mean over samples of what it returns for each alone, with ``num_items_in_batch =
    1``. Raises ConfigError where accelerate or
    the function is missing, RankFailure where a rank fails.
    """
    return certify_cases(world_size, [(case, loss) for case in (CASES if make is None else OF_YOURS)], make)


def certify_cases(
    world_size: int, cases: Sequence[tuple[Case, str | None]], make: str | None = None
) -> list[Certificate]:
    """Return a certificate for each case and loss, from ranks that are started once.

    ``cases``: each with the name of a loss, ``module:function``, or None for the Trainer's; ``make``: as above. Raises
    ConfigError where a loss cannot be imported or accelerate is missing, RankFailure where a rank fails.
    """
    if world_size < 1:
        raise ConfigError(f"world_size = {world_size}: at least 1 rank is needed")
    if importlib.util.find_spec("accelerate") is None:
        raise ConfigError("transformers' Trainer needs accelerate, which is not here: pip install 'accelerate>=1.14'")
    for loss in {loss for _, loss in cases if loss is not None}:
        function_named(loss, "loss")
    if make is not None:
        function_named(make, "trainer")
        with kept_random_states():  # here, where a mistake has one message, and ranks would have one each
            _trainer_here(make, _model(PER_DEVICE), _samples(PER_DEVICE))
    with tempfile.TemporaryDirectory(prefix="ddpsched-trainer-") as folder:
        outcomes = run_ranks(_on_rank, world_size, list(cases), folder, make)
        try:
            results = answers(outcomes)
        except RankFailure as error:
            if "Double" not in str(error):
                raise
            hint = "the certificate's model is of float64: make constants of your loss like its logits, by new_tensor"
            raise RankFailure(f"{error}\n{hint}") from None
    counts = [counts_of(outcome.posts) for outcome in outcomes]
    return [
        _certificate(
            case, loss, make, [rank[i] for rank in results],
            [{name[len(f"{i}:") :]: n for name, n in rank.items() if name.startswith(f"{i}:")} for rank in counts],
        )
        for i, (case, loss) in enumerate(cases)
    ]  # fmt: skip


def _on_rank(cases: Sequence[tuple[Case, str | None]], folder: str, make: str | None) -> list[Ran]:
    """Run every case in a rank, in whole and resumed."""
    from transformers import Trainer

    join_group()
    results, made = [], Trainer if make is None else function_named(make, "trainer")[0]
    for i, (case, loss) in enumerate(cases):
        output, compute = Path(folder, str(i)), None if loss is None else function_named(loss, "loss")[0]
        with counted(f"{i}:training"):
            steps = _train(case, made, compute, output)
        resumed = {}
        for done in range(STEPS // 2, EPOCHS * STEPS, STEPS):
            with counted(f"{i}:resumed after step {done - 1}"):
                resumed[done - 1] = _train(case, made, compute, output, output / f"checkpoint-{done}")
        results.append(Ran(steps, resumed))
    return results


def _train(
    case: Case, make: Make, compute: Loss | None, output: Path, checkpoint: Path | None = None
) -> list[TrainerStep]:
    """Run two epochs of Trainer at learning rate 0, or what a checkpoint leaves of them."""
    from transformers import TrainerCallback, TrainingArguments

    size = case.num_samples(dist.get_world_size())
    model, steps, running = _model(size), list[TrainerStep](), list[list[int]]()

    class Recorder(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            ids = list(running) if getattr(trainer, "has_samples", True) else []
            steps.append(TrainerStep(ids, capture_gradient(model).sketch))  # which is all of so small a gradient
            running.clear()

    def record(_: torch.nn.Module, __: tuple[Any, ...], inputs: Any) -> None:
        if model.training:  # and not tried, as ``balance`` does once
            ids, packing = inputs["input_ids"], inputs.get("packing")
            firsts = ids[:, 0] if packing is None else ids[0, packing.offsets[:-1]]
            running.append((firsts - 1).tolist())

    model.register_forward_pre_hook(record, with_kwargs=True)
    arguments = TrainingArguments(
        output_dir=str(output), use_cpu=True, ddp_backend="gloo", seed=0, num_train_epochs=EPOCHS,
        per_device_train_batch_size=PER_DEVICE, gradient_accumulation_steps=case.accumulation,
        learning_rate=0.0, max_grad_norm=0.0, save_strategy="steps", save_steps=STEPS // 2,
        report_to=[], logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, **case.arguments,
    )  # fmt: skip
    trainer = make(
        model=model, args=arguments, data_collator=_collate, train_dataset=_samples(size), callbacks=[Recorder()],
        compute_loss_func=compute,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return steps


def _model(num_samples: int) -> torch.nn.Module:
    """Return the model, in float64 and without dropout."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    torch.manual_seed(0)
    shape = DistilBertConfig(
        vocab_size=1 + num_samples + WORDS, dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=64,
        num_labels=2, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    return DistilBertForSequenceClassification(shape).double()


def _samples(count: int) -> list[dict[str, Any]]:
    """Return samples of 3 to 40 tokens, none of them padding (0)."""
    rng, low = np.random.default_rng(0), 1 + count

    def tokens() -> list[int]:
        return rng.integers(low, low + WORDS, rng.integers(2, 40)).tolist()

    return [{"input_ids": [1 + i, *tokens()], "labels": int(rng.integers(2))} for i in range(count)]


def _collate(rows: Sequence[dict[str, Any]]) -> Inputs:
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": labels}


def _certificate(
    case: Case, loss: str | None, make: str | None, ran: list[Ran], counts: list[dict[str, int | None]]
) -> Certificate:
    """Return the certificate of a case from what all ranks did; ``counts[r]``: collectives of rank r by phase."""
    size, steps = case.num_samples(len(ran)), len(ran[0].steps) // EPOCHS
    ids = [[[id for ids in step.microbatches for id in ids] for step in rank.steps] for rank in ran]
    epochs = [exactly_once([each[i * steps :][:steps] for each in ids], size) for i in range(EPOCHS)]
    once = next((check for check in epochs if not check.holds), epochs[0])
    if not once.holds and size % len(ran):
        cause = f"{size:,} samples are not divided by {len(ran)} ranks, and accelerate (even_batches) repeats some"
        once = replace(once, cause=cause)
    first, later = (_resumed(ran, at) for at in sorted(ran[0].resumed))
    checks = (
        _gradient(case, loss, make, ran), once, same_counts([rank.steps for rank in ran]), same_collectives(counts),
        replace(first, says=f"in the first epoch: {first.says}"),
        *([] if make is None else [replace(later, says=f"in the second epoch: {later.says}")]),
    )  # fmt: skip
    versions = ", ".join(f"{name} {version(name)}" for name in ("transformers", "accelerate", "torch"))
    head = f"compute_loss_func={loss}, its target the mean of it over samples" if loss else "its own head's mean"
    head = head if make is None else "the Trainer's own, its target the mean of it over samples"
    sizes = ", ".join("+".join(str(len(ids)) for ids in rank.steps[0].microbatches) for rank in ran)
    facts = [
        f"{versions}; {len(ran)} gloo ranks",
        f"DistilBertForSequenceClassification, tiny, float64, no dropout; loss: {head}",
        f"{size:,} samples, {EPOCHS} epochs of {steps} steps at learning rate 0, unclipped; by rank in step 0: {sizes}",
        "one plan: not applicable, Trainer's ranks share none; what they must share is the number of steps",
    ]
    if make is None:
        seen = "" if later.holds else f" ({later.cause}). {LATER}"
        facts.append(f"resumed in the second epoch: {later.says}{seen}")
    subject = make or "transformers' Trainer"
    return Certificate(f"{subject}, {case.name}", checks, tuple(facts))


def _gradient(case: Case, loss: str | None, make: str | None, ran: list[Ran]) -> Check:
    """Compare every step's gradient on every rank with the target; report the worst."""
    samples = _samples(case.num_samples(len(ran)))
    with torch.random.fork_rng(devices=[]):
        model = _model(len(samples))
    losses = row_losses if loss is None else partial(_losses_of, function_named(loss, "loss")[0])
    if make is not None:
        losses = partial(_losses_of_trainer, _trainer_here(make, model, samples))
    judged = []
    for steps in zip(*(rank.steps for rank in ran), strict=False):
        parts = [(rank, ids) for rank, step in enumerate(steps) for ids in step.microbatches]
        batches = (_collate([samples[i] for i in ids]) for _, ids in parts)
        target = reference(model, batches, losses, [rank for rank, _ in parts], world_size=len(ran))
        judged += [compare(step.gradient, target, TOLERANCES["float64"]) for step in steps]
    at = max(range(len(judged)), key=lambda i: (not judged[i].holds, judged[i].relative_error))  # NaN is worst
    worst, scales = judged[at], [each.best_scale for each in judged]
    says = (
        "every step's, on every rank, against the mean over the global batch, computed by one process; the worst, in "
        f"step {at // len(ran)}: {worst.says}; best scales {min(scales):.6g} to {max(scales):.6g}, lowest cosine "
        f"{min(each.cosine for each in judged):.6f}"
    )
    more = " of each micro-batch, and nothing divides by the accumulation steps" if case.accumulation > 1 else ""
    known = HEAD.format(more) if loss is None else FUNCTION
    cause = worst.cause if make else f"{known}. In numbers: {worst.cause}"
    if make is not None and not worst.holds and not _adds_up(losses, model, samples):
        cause = (
            "the loss of several samples is not the mean of theirs, so the gradient depends on which of them share a "
            f"batch: give the sum over labels divided by num_items_in_batch. In numbers: {worst.cause}"
        )
    return Check("gradient", worst.holds, says, None if worst.holds else cause, worst.numbers)


def _losses_of(compute: Loss, model: torch.nn.Module, batch: Inputs) -> torch.Tensor:
    """Return what a loss function returns for each sample alone, (count,)."""
    from transformers.modeling_outputs import SequenceClassifierOutput

    pairs = zip(logits_of(model, batch).split(1), batch["labels"].split(1), strict=True)
    one = torch.tensor(1)
    return torch.stack([compute(SequenceClassifierOutput(logits=x), y, num_items_in_batch=one) for x, y in pairs])


def _trainer_here(make: str, model: torch.nn.Module, samples: list[dict[str, Any]]) -> Any:
    """Return the Trainer that ``make`` makes, in this process, for its loss alone. Raises ConfigError for another."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory(prefix="ddpsched-loss-") as folder:
        arguments = TrainingArguments(folder, use_cpu=True, report_to=[])
        try:
            made = function_named(make, "trainer")[0](
                model=model, args=arguments, data_collator=_collate, train_dataset=samples, callbacks=[],
                compute_loss_func=None,
            )  # fmt: skip
        except DdpschedError:
            raise
        except Exception as error:
            raise ConfigError(
                f"--trainer {make} raised {type(error).__name__}: {error}; it gets what Trainer takes, by name (model, "
                "args, data_collator, train_dataset, callbacks, compute_loss_func)"
            ) from error
    if not isinstance(made, Trainer):
        raise ConfigError(f"--trainer {make} returned {type(made).__name__}; return a Trainer made of these arguments")
    return made


def _losses_of_trainer(trainer: Any, model: torch.nn.Module, batch: Inputs) -> torch.Tensor:
    """Return what a Trainer's loss is for each sample alone, (count,)."""
    return torch.stack([_loss_of(trainer, model, {name: each[i : i + 1] for name, each in batch.items()})
                        for i in range(len(batch["labels"]))])  # fmt: skip


def _loss_of(trainer: Any, model: torch.nn.Module, batch: Inputs) -> torch.Tensor:
    loss: torch.Tensor = trainer.compute_loss(model, dict(batch), num_items_in_batch=torch.tensor(len(batch["labels"])))
    return loss


def _adds_up(losses: Any, model: torch.nn.Module, samples: list[dict[str, Any]]) -> bool:
    """Return whether the loss of a batch is the mean of its samples' losses."""
    batch = _collate(samples[:PER_DEVICE])
    with torch.no_grad():
        whole, each = _loss_of(losses.args[0], model, batch), losses(model, batch)
    return bool(torch.isclose(whole, each.mean(), rtol=1e-9))


def _resumed(ran: list[Ran], at: int) -> Check:
    """Compare the samples of all ranks, step by step, after a resumption behind step ``at``."""

    def by_step(ranks: Sequence[Sequence[TrainerStep]]) -> list[str]:
        return [repr([step and step.microbatches for step in steps]) for steps in zip_longest(*ranks)]

    return resumption(by_step([rank.steps for rank in ran]), by_step([rank.resumed[at] for rank in ran]), at)
