"""Peers: other packages' batching of the same lengths, as streams of steps.

Each calls the code of its package where that installs; where ``package`` says so, the algorithm is reimplemented here.
A package is imported when its peer is first used. A peer that cannot be used raises PeerMissing with the reason.

============================ ==================================================== ======= =============
peer                         a step's samples                                      rows    asked by
============================ ==================================================== ======= =============
length_grouped(_global)      transformers: batches of similar length               padded  B
batch_rebalance              transformers: static's, split by hill climbing        padded  B
batch_rebalance_scored       the same with the cost that is scored                 padded  B
batch_rebalance_accumulate   the same in M micro-batches a rank                    padded  B, M
flattening                   transformers: static's, equal counts                 packed  B
karmarkar_karp(_equal)       static's, largest differencing (of equal counts)      packed  B
verl(_equal)                 static's, as verl partitions them                     packed  B
nemo_rl                      static's, modified first-fit decreasing, dealt       packed  B, M
slime                        static's, largest differencing twice                 packed  B, M
torchtitan                   static's, next fit in order, dealt                   packed  B, M
megatron                     static's, long ones split over ranks, in groups      packed  B, tokens
trl_bfd                      chunks of 1,000, best-fit decreasing                 packed  row tokens
trl_token_budget             the order's next, as long as a rank has room         packed  row tokens
axolotl                      all, first-fit decreasing                            packed  row tokens
llama_factory                chunks of 1,000, greedy knapsacks                    packed  row tokens
deepspeed                    the order's next, as many as a sum of lengths allows  padded  real tokens
fairseq(_multiple_8)         sorted, cut at a padded size, shuffled                padded  padded tokens
lhotse                       one bucket a step for all ranks, to a padded size     padded  padded tokens
cosmos_rl                    each rank from a pool, to a padded size               padded  padded tokens
online_dynamic_batching      each rank from a buffer, groups agreed on             padded  padded tokens
============================ ==================================================== ======= =============

::

    peer.py                      the input and output of a peer
    packages.py                  other packages, imported when used
    budget.py                    the token budget that gives B samples a step
    length_grouped.py            transformers' group_by_length
    batch_rebalance.py           transformers' batch_rebalance
    flattening.py                transformers' padding-free batches
    karmarkar_karp.py            largest differencing
    verl.py                      verl's balancing
    deepspeed.py                 DeepSpeed's variable batches
    fairseq.py                   fairseq's max_tokens
    rows.py                      rows of a number of tokens, as packing trainers fill them
    nemo_rl.py                   NeMo-RL's modified first-fit decreasing
    slime.py                     slime's dynamic batches
    torchtitan.py                torchtitan's batcher of rollouts
    megatron.py                  Megatron-LM's hybrid context parallelism
    trl.py                       TRL's packing, and its token-budget batcher
    axolotl.py                   axolotl's multipack
    llama_factory.py             LLaMA-Factory's knapsacks
    lhotse.py                    lhotse's bucketing sampler
    cosmos_rl.py                 cosmos-rl's pool
    online_dynamic_batching.py   online-dynamic-batching
"""

from ddpsched.peers import (
    axolotl,
    batch_rebalance,
    cosmos_rl,
    deepspeed,
    fairseq,
    flattening,
    karmarkar_karp,
    length_grouped,
    lhotse,
    llama_factory,
    megatron,
    nemo_rl,
    slime,
    torchtitan,
    trl,
    verl,
)
from ddpsched.peers import online_dynamic_batching as odb
from ddpsched.peers.peer import Peer, Problem, SplitStep, Step

_MODULES = (
    length_grouped, batch_rebalance, flattening, karmarkar_karp, verl, slime, nemo_rl, torchtitan, megatron, trl,
    axolotl, llama_factory, deepspeed, fairseq, lhotse, cosmos_rl, odb,
)  # fmt: skip
PEERS: dict[str, Peer] = {peer.name: peer for module in _MODULES for peer in module.PEERS}

__all__ = ["PEERS", "Peer", "Problem", "SplitStep", "Step"]
