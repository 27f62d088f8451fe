"""Training: one plain loop, for NBSR and its baselines alike; it yields a record an epoch and knows no cluster.

Every epoch starts from random state that follows from `(seed, epoch)` alone. That makes two runs on a CPU identical to
the last bit, and makes a resumed run equal to one that was never stopped without saving any generator's state.
"""

from nbsr_core.training.batches import Batches, TensorBatches, epoch_seed, seed_everything
from nbsr_core.training.checkpoint import load_checkpoint, save_atomically
from nbsr_core.training.config import OptimizerName, SchedulerName, TrainingConfig
from nbsr_core.training.trainer import EpochRecord, LossFunction, Trainer, Validation

__all__ = [
    "Batches",
    "EpochRecord",
    "LossFunction",
    "OptimizerName",
    "SchedulerName",
    "TensorBatches",
    "Trainer",
    "TrainingConfig",
    "Validation",
    "epoch_seed",
    "load_checkpoint",
    "save_atomically",
    "seed_everything",
]
