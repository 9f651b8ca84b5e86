"""Gradient synchronisers: how the gradients of all ranks become their sum.

With each micro-batch's summed loss divided by the global count, B, that sum is the
gradient of the mean over the global batch. A step of a rank:

``accumulate()``   a context: the backward in it keeps its gradients on this rank;
``synchronise()``  a context: the one backward in it, the last of the step, starts the
                   exchange of gradients (naive starts it in ``wait``);
``wait()``         return when every parameter's ``grad`` is the sum over all ranks;
                   a rank that ran no backward takes part here, with zeros;
``join()``         instead of ``wait``, where this rank's step broke off: take part in
                   the collectives that are left with zeros (if ``joins``).

A parameter that no rank used keeps ``grad = None``; one that some rank used counts
as zero on the others. A shared parameter is reduced once. Buffers that forward
changes are rank 0's on every rank after a step.

::

    synchroniser.py   the base of all, which serves a rank alone; which parameters are added up; the collectives' log
    naive.py          one all-reduce after backward
    bucketed.py       flat buckets, or one parameter at a time ("overlap"), while backward fills the next
    ddp.py            torch's DistributedDataParallel
    fsdp.py           torch's fully_shard
"""

from ddpsched.training.sync.bucketed import BucketedSync, OverlapSync
from ddpsched.training.sync.ddp import DdpSync
from ddpsched.training.sync.fsdp import FsdpSync
from ddpsched.training.sync.naive import NaiveSync
from ddpsched.training.sync.synchroniser import Synchroniser

SYNCS: dict[str, type[Synchroniser]] = {
    "naive": NaiveSync,
    "overlap": OverlapSync,
    "bucketed": BucketedSync,
    "ddp": DdpSync,
    "fsdp": FsdpSync,
}
