"""headcount: how many heads and how many parameters does an attention mechanism need for a task?"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headcount.api import Results, reproduce, sweep
    from headcount.config import BadInput
    from headcount.experiments import Execution, RayCluster

__version__ = "0.1.0"
__all__ = ["BadInput", "Execution", "RayCluster", "Results", "reproduce", "sweep"]


def __getattr__(name: str) -> Any:
    # On demand: a worker process needs neither figures nor statistics, which take as long to load as torch.
    if name not in __all__:
        raise AttributeError(f"module 'headcount' has no attribute '{name}'")
    from headcount import api, experiments

    return getattr(experiments if name in experiments.__all__ else api, name)
