"""Where and how trials are trained: nothing of it is part of what defines a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headcount.config import BadInput


@dataclass(frozen=True)
class RayCluster:
    """Where groups train, and what one takes.

    Attributes:
        address: of an existing cluster: "auto", host:port, or ray://host:port. None starts one on this machine
            that listens on the loopback interface only, and ends it afterwards.
        cpus_per_group: cores that Ray sets aside; a group trains in one thread whatever it is given.
        gpus_per_group: GPUs that Ray sets aside, a part of one (0.25) for groups that share it; 0 trains on the CPU.

    Raises:
        BadInput: if Ray cannot set such amounts aside.
    """

    address: str | None = None
    cpus_per_group: float = 1
    gpus_per_group: float = 0

    def __post_init__(self) -> None:
        if not self.cpus_per_group > 0:
            raise BadInput(f"cpus_per_group = {self.cpus_per_group:g}: a number above 0 is needed")
        if not self.gpus_per_group >= 0:
            raise BadInput(f"gpus_per_group = {self.gpus_per_group:g}: 0 or more are needed")
        for name, amount in (("cpus", self.cpus_per_group), ("gpus", self.gpus_per_group)):
            if amount > 1 and amount != int(amount):
                raise BadInput(f"{name}_per_group = {amount:g}: above 1, Ray sets aside whole numbers only")

    def device(self, name: str) -> str:
        """The device of groups, "cpu" or "cuda", for what was asked: cpu, cuda or auto.

        Raises:
            BadInput: if it contradicts `gpus_per_group`.
        """
        has = "cuda" if self.gpus_per_group else "cpu"
        if name not in ("auto", has):
            raise BadInput(f"device '{name}' does not go with gpus_per_group = {self.gpus_per_group:g}, which is {has}")
        return has

    def slots(self, node: dict[str, Any]) -> int:
        """Groups that a node, as `ray.nodes` gives it, can train at once."""
        wanted = {"CPU": self.cpus_per_group, "GPU": self.gpus_per_group}
        has = node["Resources"] if node["Alive"] else {}
        return min(int(has.get(name, 0) / amount + 1e-9) for name, amount in wanted.items() if amount)


@dataclass(frozen=True)
class Execution:
    """Where and how trials are trained.

    Attributes:
        device: cpu, cuda, or auto (cuda if there is one).
        workers: processes; None for one a core (one on a GPU). One runs in the calling process, which then has nobody
            to survive it: only worker processes are replaced when they die. Of a cluster that is started here: groups
            at once.
        timeout: seconds that a trial may take, see `attempt`; None for no limit.
        fail_fast: stop at the first trial that fails.
        compiled: let torch.compile fuse the optimiser step, see `recording.fused`.
        cluster: a Ray cluster to train on; None for processes of this machine.

    Raises:
        BadInput: if there are no workers or no time, or the workers of an existing cluster are chosen.
    """

    device: str = "auto"
    workers: int | None = None
    timeout: float | None = None
    fail_fast: bool = False
    compiled: bool = False
    cluster: RayCluster | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise BadInput(f"workers = {self.workers}: at least 1 is needed")
        if self.timeout is not None and not self.timeout > 0:
            raise BadInput(f"timeout = {self.timeout:g}: a number of seconds above 0 is needed")
        if self.workers is not None and self.cluster is not None and self.cluster.address is not None:
            raise BadInput("workers are of a cluster that is started here; an existing one has the size it has")
