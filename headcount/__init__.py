"""headcount: how many heads and how many parameters does an attention mechanism need for a task?"""

from headcount.api import Results, reproduce, sweep
from headcount.config import BadInput

__version__ = "0.1.0"
__all__ = ["BadInput", "Results", "reproduce", "sweep"]
