"""What type checkers see of the names that load on first use."""

from ddpsched.certify.certify_loader import certify_loader as certify_loader
from ddpsched.certify.certify_step import assert_gradient_exact as assert_gradient_exact
from ddpsched.compare.comparison import Comparison as Comparison
from ddpsched.compare.comparison import plan as plan
from ddpsched.data.dataset_lengths import lengths as lengths
from ddpsched.data.laws.length_laws import law_lengths as law_lengths
from ddpsched.denominators import token_weights as token_weights
from ddpsched.errors import ConfigError as ConfigError
from ddpsched.errors import DataError as DataError
from ddpsched.errors import DdpschedError as DdpschedError
from ddpsched.errors import InfeasibleError as InfeasibleError
from ddpsched.errors import NonFiniteError as NonFiniteError
from ddpsched.errors import PeerMissing as PeerMissing
from ddpsched.errors import PlanMismatch as PlanMismatch
from ddpsched.errors import RankFailure as RankFailure
from ddpsched.errors import RunError as RunError
from ddpsched.errors import RunExistsError as RunExistsError
from ddpsched.errors import RunFinishedError as RunFinishedError
from ddpsched.errors import RunHeldError as RunHeldError
from ddpsched.errors import RunStopped as RunStopped
from ddpsched.errors import SolverTimeout as SolverTimeout
from ddpsched.errors import StepOutOfMemory as StepOutOfMemory
from ddpsched.integrations.balanced_loader import balanced as balanced
from ddpsched.integrations.batch_sampler import BatchSampler as BatchSampler
from ddpsched.integrations.losses import summed_cross_entropy as summed_cross_entropy
from ddpsched.integrations.micro_batches import micro_batches as micro_batches
from ddpsched.integrations.packed_collate import packed_collate as packed_collate
from ddpsched.integrations.pool_stream import PoolStream as PoolStream
from ddpsched.integrations.recorder import Recorder as Recorder
from ddpsched.integrations.scaled import scaled as scaled
from ddpsched.integrations.split_samples import split_samples as split_samples
from ddpsched.integrations.step_loader import StepLoader as StepLoader
from ddpsched.integrations.step_share import StepShare as StepShare
from ddpsched.integrations.stream_scheduler import StreamScheduler as StreamScheduler
from ddpsched.integrations.world_size import for_world_size as for_world_size
from ddpsched.planning.one_batch.balance import balance as balance
from ddpsched.planning.one_batch.result import Balance as Balance
from ddpsched.planning.solvers.allocation import solve as solve
from ddpsched.planning.what_if import what_if as what_if
from ddpsched.run_loop import run as run
from ddpsched.step_plan import StepPlan as StepPlan
from ddpsched.training.packed import enable_packing as enable_packing
from ddpsched.training.variable_lr import VariableBatchSizeLR as VariableBatchSizeLR
from ddpsched.world import World as World

__version__: str
