"""The loader that a Trainer's arguments ask for."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import ddpsched
from ddpsched.errors import ConfigError
from ddpsched.integrations.loader_arguments import Arguments
from ddpsched.integrations.packed_collate import packed_collate
from ddpsched.integrations.step_loader import StepLoader
from ddpsched.integrations.transformers.microbatches import Microbatches
from ddpsched.planning.policies import POLICIES
from ddpsched.planning.policy import Policy
from ddpsched.training.packed import enable_packing
from ddpsched.world import World

OPTIONS = ("policy", "lengths", "global_batch", "order", "seed", "cost", "memory", "speeds", "mean_loss")
MEANS = ("scale", "refuse")
ARGUMENTS = {  # of TrainingArguments: the values that leave the order and the ranks to the plans
    "train_sampling_strategy": (
        "random",
        "the policy decides which samples come when (or order=)",
    ),
    "group_by_length": (False, "the policy decides which samples come when"),
    "average_tokens_across_devices": (True, "the loss is divided by the step's labels over all ranks"),
    "auto_find_batch_size": (False, "the batch size is that of the plans; give memory= for a limit"),
    "dataloader_in_order": (True, "the batches come as they are planned"),
}


def microbatches_of(trainer: Any, options: Mapping[str, Any]) -> Microbatches:
    """Return the micro-batches that ``trainer`` runs. Raises ConfigError for arguments that do not go together."""
    from transformers.trainer_utils import seed_worker

    args, dataset, collate = trainer.args, trainer.train_dataset, trainer.data_collator
    _check(trainer, options)
    per_step, world = args.gradient_accumulation_steps, World(args.process_index, args.world_size)
    policy = _policy(options, per_step)
    given = Arguments.of(type(trainer).__name__, policy=policy, global_batch=options.get("global_batch")).policy
    _check_microbatches(given, per_step, options)
    lengths = options.get("lengths")
    if lengths is None:
        column = args.length_column_name
        has = column in (getattr(dataset, "column_names", None) or ())
        lengths = ddpsched.lengths(dataset, column if has else None)
    if given.packs and str(getattr(collate, "__module__", "")).startswith("transformers."):
        collate = packed_collate
    if given.packs and collate is packed_collate:
        _check_packed(trainer)
        enable_packing(trainer.model)
    if hasattr(dataset, "column_names") and hasattr(dataset, "set_format"):  # of datasets
        dataset = trainer._remove_unused_columns(dataset, description="training")
    else:
        collate = trainer._get_collator_with_removed_columns(collate, description="training")
    made = {name: options[name] for name in ("order", "cost", "memory", "speeds") if options.get(name) is not None}
    steps = StepLoader(
        dataset, lengths, world=world, policy=policy, global_batch=None if given.varies else _global_batch(trainer),
        seed=options.get("seed", args.seed if args.data_seed is None else args.data_seed),
        last="full" if args.dataloader_drop_last else "smaller", collate_fn=collate,
        num_workers=args.dataloader_num_workers, pin_memory=args.dataloader_pin_memory,
        persistent_workers=args.dataloader_persistent_workers, prefetch_factor=args.dataloader_prefetch_factor,
        multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None),
        worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index), **made,
    )  # fmt: skip
    return Microbatches(steps, dataset, per_step)


def _check_packed(trainer: Any) -> None:
    """Raise ConfigError for labels of tokens, the first of which packed_collate leaves out, of no causal model."""
    first, name = trainer.train_dataset[0], type(trainer.model).__name__
    labels = first.get("labels", first.get("label")) if isinstance(first, Mapping) else None
    if hasattr(labels, "__len__") and not any(word in name for word in ("CausalLM", "LMHead")):
        raise ConfigError(
            f"policy 'packed' lays rows for classifiers of samples and causal language models, but {name} has a label "
            "for each token; use 'balanced', or a data_collator of your own with a StepLoader"
        )


def _policy(options: Mapping[str, Any], per_step: int) -> dict[str, Any]:
    """Return the policy as a mapping, whose micro-batches of a rank are ``per_step`` unless it says otherwise."""
    given = options.get("policy", "balanced")
    policy = {"kind": given} if isinstance(given, str) else dict(given)
    kind = POLICIES.get(policy.get("kind", ""))
    for name in ("max_microbatches", "batches_per_optimizer_step"):
        if kind is not None and name in kind.model_fields:
            policy.setdefault(name, per_step)
    return policy


def _global_batch(trainer: Any) -> int:
    args = trainer.args
    size: int = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return size


def _check(trainer: Any, options: Mapping[str, Any]) -> None:
    args, owner = trainer.args, type(trainer).__name__
    if odd := sorted(set(options) - set(OPTIONS)):
        raise ConfigError(f"{owner}: {', '.join(odd)} is none of {', '.join(OPTIONS)}")
    if options.get("mean_loss", "scale") not in MEANS:
        given = options["mean_loss"]
        raise ConfigError(f"{owner}: mean_loss = {given!r} is none of {', '.join(map(repr, MEANS))}")
    if trainer.train_dataset is None:
        raise ConfigError(f"{owner}: train_dataset is missing; give Trainer one")
    for name, (needed, why) in ARGUMENTS.items():
        value = getattr(args, name, needed)
        if value != needed:
            raise ConfigError(f"{owner}: {name} = {value!r}, but {why}; set {name}={needed!r}")
    if args.n_gpu > 1:
        raise ConfigError(
            f"{owner}: {args.n_gpu} GPUs in one process (DataParallel), where a plan gives each rank a process; start "
            f"torchrun --nproc-per-node {args.n_gpu}, or set CUDA_VISIBLE_DEVICES to one"
        )
    size, given = _global_batch(trainer), options.get("global_batch")
    if given is not None and given != size:
        raise ConfigError(
            f"{owner}: global_batch = {given}, but per_device_train_batch_size = {args.per_device_train_batch_size} x "
            f"gradient_accumulation_steps = {args.gradient_accumulation_steps} x {args.world_size} processes = {size}; "
            "make them agree, or leave global_batch out"
        )


def _check_microbatches(given: Policy, per_step: int, options: Mapping[str, Any]) -> None:
    if per_step > 1 and given.most_microbatches == 1 and not (given.packs and options.get("memory")):
        remedy = "give memory=, by which it splits its rows" if given.packs else "use 'balanced'"
        raise ConfigError(
            f"policy {given.kind!r} gives each rank one micro-batch a step, but gradient_accumulation_steps = "
            f"{per_step}; {remedy}, or set gradient_accumulation_steps=1"
        )
    if given.most_microbatches > per_step:
        raise ConfigError(
            f"policy {given.kind!r} gives a rank up to {given.most_microbatches} micro-batches a step, but "
            f"gradient_accumulation_steps = {per_step}; set gradient_accumulation_steps={given.most_microbatches}, or "
            "lower the policy's"
        )
