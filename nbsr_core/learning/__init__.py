"""Training: one plain loop, for NBSR and its baselines alike; it yields one record per epoch and knows no cluster.

Every epoch starts from random state that follows from `(seed, epoch)` alone. That makes two runs on a CPU identical to
the last bit, and makes a resumed run equal to one that was never stopped without saving any generator's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbsr_core._lazy import on_first_use

if TYPE_CHECKING:
    from nbsr_core.learning.batches import Batches, TensorBatches, epoch_seed, seed_everything
    from nbsr_core.learning.checkpoint import load_checkpoint, save_atomically
    from nbsr_core.learning.config import OptimizerName, SchedulerName, TrainingConfig
    from nbsr_core.learning.learners import Learner, NbsrLearner
    from nbsr_core.learning.objectives import Objective
    from nbsr_core.learning.splits import Split, Splits
    from nbsr_core.learning.trainer import EpochRecord, LossFunction, Trainer, Validation

__all__ = [
    "Batches",
    "EpochRecord",
    "Learner",
    "LossFunction",
    "NbsrLearner",
    "Objective",
    "OptimizerName",
    "SchedulerName",
    "Split",
    "Splits",
    "TensorBatches",
    "Trainer",
    "TrainingConfig",
    "Validation",
    "epoch_seed",
    "load_checkpoint",
    "save_atomically",
    "seed_everything",
]

__getattr__ = on_first_use(
    __name__,
    {
        "Batches": "batches",
        "EpochRecord": "trainer",
        "Learner": "learners",
        "LossFunction": "trainer",
        "NbsrLearner": "learners",
        "Objective": "objectives",
        "OptimizerName": "config",
        "SchedulerName": "config",
        "Split": "splits",
        "Splits": "splits",
        "TensorBatches": "batches",
        "Trainer": "trainer",
        "TrainingConfig": "config",
        "Validation": "trainer",
        "epoch_seed": "batches",
        "load_checkpoint": "checkpoint",
        "save_atomically": "checkpoint",
        "seed_everything": "batches",
    },
)
