"""TRL's GRPOTrainer with its micro-batches divided by length: BalancedGRPOTrainer in place of GRPOTrainer.

    torchrun --nproc-per-node 2 trl_grpo.py

After each generation the samples of all ranks are divided anew, into as many micro-batches as before, so that the
tokens of all of them, each padded to its own longest answer, are fewest. Micro-batches then hold other numbers of
samples, so the loss must be one that sums over label tokens and divides by a count of the whole generation: loss_type
"dapo" or "cispo". (pip install trl)
"""

import time
from typing import Any

import numpy as np
import torch
from trl import GRPOConfig, GRPOTrainer

import ddpsched

SUMMED = ("dapo", "cispo", "vespo")


class BalancedGRPOTrainer(GRPOTrainer):
    """Give all ranks samples of similar lengths in each micro-batch of a generation."""

    def _prepare_inputs(self, batch: Any) -> Any:
        args, before = self.args, self._buffered_inputs
        if self.loss_type not in SUMMED or self.tools:
            raise ValueError(f"loss_type = {self.loss_type!r}: give one of {', '.join(SUMMED)}, and no tools")
        inputs = super()._prepare_inputs(batch)
        if not self.model.training or self._buffered_inputs is before:
            return inputs
        self._buffered_inputs = self._balanced(self._buffered_inputs)
        return self._buffered_inputs[self._step % args.steps_per_generation]

    def _balanced(self, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = [key for key, value in parts[0].items() if isinstance(value, torch.Tensor) and value.ndim > 0]
        whole = {key: torch.cat([part[key] for part in parts]) for key in rows}
        # prompts are padded on the left, or the places of their tokens would change
        padded = {
            key: self.accelerator.pad_across_processes(value, dim=1, pad_first="prompt" in key)
            for key, value in whole.items()
        }
        everyone = {key: self.accelerator.gather(value) for key, value in padded.items()}  # of all ranks
        lengths = (everyone["prompt_mask"].sum(1) + everyone["completion_mask"].sum(1)).cpu().numpy()
        ranks, steps = self.accelerator.num_processes, len(parts)
        # one sample for each rank, of similar lengths, as TRL's metrics need as many on each; longest first
        rows_of = np.argsort(-lengths, kind="stable").reshape(-1, ranks)
        longest = lengths[rows_of[:, 0]]
        divided = list(ddpsched.balance(longest, 1, packed=False, max_microbatches=steps).ranks[0])
        while len(divided) < steps:  # fewer cost as little
            most = divided.pop(max(range(len(divided)), key=lambda part: len(divided[part])))
            divided += [most[: len(most) // 2], most[len(most) // 2 :]]
        mine = [torch.from_numpy(rows_of[part, self.accelerator.process_index]) for part in divided]
        return [{**parts[0], **self._cut(everyone, positions)} for positions in mine]

    def _cut(self, everyone: dict[str, torch.Tensor], positions: torch.Tensor) -> dict[str, torch.Tensor]:
        found = {key: value[positions.to(value.device)] for key, value in everyone.items()}
        longest, width = int(found["completion_mask"].sum(1).max()), found["completion_ids"].shape[1]
        # answers are padded on the right; whatever has a value for each of their tokens is cut likewise
        return {
            key: value[:, :longest] if value.ndim > 1 and value.shape[1] == width and "prompt" not in key else value
            for key, value in found.items()
        }


def tiny() -> tuple[Any, Any]:
    """Return a language model and a tokenizer for this script's trial run."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from ddpsched.data.embedded.sentences import embedded_tokenizer

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=embedded_tokenizer(), pad_token="[PAD]", eos_token="[SEP]", padding_side="left"
    )
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=128, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(shape), tokenizer


def main() -> None:
    from datasets import Dataset

    model, tokenizer = tiny()
    config = GRPOConfig(
        "grpo", max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=24, loss_type="dapo", use_cpu=True, report_to=[], save_strategy="no", logging_steps=1,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": ["a fine film", "no story", "the cast is good and the music too"] * 8})
    trainer = BalancedGRPOTrainer(
        model, lambda completions, **_: [float(len(each)) for each in completions], config, data,
        processing_class=tokenizer,
    )  # fmt: skip
    trainer.train()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done


if __name__ == "__main__":
    main()
