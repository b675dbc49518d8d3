"""Many models of one shape as one program: their parameters lie side by side in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap

from headcount.models.attention import Attention
from headcount.models.layer import Layer
from headcount.models.network import Network


class Ensemble:
    """E models of the same architecture.

    All parameters live in `theta` of shape (E, parameters of one model), a single leaf, so that an
    optimiser step is a handful of operations however many models and tensors there are. Any module
    can be stacked: the forward pass is `torch.func.vmap` of the plain single-model module.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        """Take over the parameters of `members`, which must have equal shapes.

        Buffers (fixed, not trained) are taken from the first member.
        """
        self.template = members[0]
        self.names = [name for name, _ in self.template.named_parameters()]
        self.shapes = [parameter.shape for _, parameter in self.template.named_parameters()]
        self.sizes = [shape.numel() for shape in self.shapes]
        rows = [torch.cat([p.detach().flatten() for p in member.parameters()]) for member in members]
        self.theta = torch.stack(rows).requires_grad_()
        self.buffers = dict(self.template.named_buffers())

    def to(self, device: torch.device, dtype: torch.dtype) -> Ensemble:
        """Move parameters and buffers, and cast those that are floating point."""
        self.theta = self.theta.detach().to(device, dtype).requires_grad_()
        self.buffers = {
            name: buffer.to(device, dtype if buffer.is_floating_point() else buffer.dtype)
            for name, buffer in self.buffers.items()
        }
        return self

    def __len__(self) -> int:
        return len(self.theta)

    def state(self, member: int) -> dict[str, Tensor]:
        """Parameters and buffers of one member, for `nn.Module.load_state_dict`."""
        flat = self.theta.detach()[member].split(self.sizes)
        pairs = zip(self.names, flat, self.shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in pairs} | self.buffers

    def __call__(
        self,
        inputs: Float[Tensor, "members batch tokens features"] | Int[Tensor, "members batch tokens ids"],
        theta: Float[Tensor, "members parameters"] | None = None,
        valid: Bool[Tensor, "members batch tokens"] | None = None,
    ) -> Float[Tensor, "members batch tokens outputs"]:
        """Every member on its own inputs.

        Args:
            theta: in place of the current parameters.
            valid: True at real tokens; all are if not given, or for ids those that are not padding.
        """
        parts = (self.theta if theta is None else theta).split(self.sizes, dim=1)
        stacked = {
            name: part.reshape(len(part), *shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }
        arguments = (inputs,) if valid is None else (inputs, valid)
        return vmap(self._one)(stacked, *arguments)

    def _one(self, parameters: dict[str, Tensor], *arguments: Any) -> Tensor:
        output: Tensor = functional_call(self.template, (parameters, self.buffers), arguments)
        return output


def build_ensemble(build: Callable[[], Layer | Network | Attention], generators: Sequence[torch.Generator]) -> Ensemble:
    """An ensemble of freshly drawn models, one for each generator.

    Args:
        build: returns a new model.
        generators: member i's weights are a function of generators[i] alone.
    """
    members = []
    for generator in generators:
        member = build()
        member.reset(generator)
        members.append(member)
    return Ensemble(members)
