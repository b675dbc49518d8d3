"""headcount: how many heads and how many parameters does an attention mechanism need for a task?"""

from headcount.api import Results, reproduce, sweep
from headcount.config import BadInput
from headcount.experiments import RayCluster

__version__ = "0.1.0"
__all__ = ["BadInput", "RayCluster", "Results", "reproduce", "sweep"]
