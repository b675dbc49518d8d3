"""What is run: trials, sweeps, training and the store; the only room that trains or writes results."""

from headcount.experiments.execution import Execution, RayCluster
from headcount.experiments.runner import Report, run
from headcount.experiments.store import Store
from headcount.experiments.sweep import TOLERANCE, Sweep, load_preset, preset_names
from headcount.experiments.trial import TrainingConfig, Trial

__all__ = [
    "TOLERANCE",
    "Execution",
    "RayCluster",
    "Report",
    "Store",
    "Sweep",
    "TrainingConfig",
    "Trial",
    "load_preset",
    "preset_names",
    "run",
]
