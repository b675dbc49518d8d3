"""Many models of one shape as one program: their parameters lie side by side in blocks."""

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

LARGE = 1024
"""Numbers from which on a parameter has a block of its own."""


class Ensemble:
    """E models of the same architecture.

    Any module can be stacked: the forward pass is `torch.func.vmap` of the plain single-model module.

    Attributes:
        weights: all parameters, as blocks of one row for each model. A large parameter is a block of its own, and so
            lies in memory as one product of many matrices wants it; the others lie side by side in one block, so that
            an optimiser step is a handful of operations however many tensors there are.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        """Take over the parameters of `members`, which must have equal shapes.

        Buffers (fixed, not trained) are taken from the first member.
        """
        self.template = members[0]
        self.names = [name for name, _ in self.template.named_parameters()]
        self.shapes = [parameter.shape for _, parameter in self.template.named_parameters()]
        self.sizes = [shape.numel() for shape in self.shapes]
        small = [i for i, size in enumerate(self.sizes) if size < LARGE]
        self.blocks = [[i] for i, size in enumerate(self.sizes) if size >= LARGE] + ([small] if small else [])
        values = [[parameter.detach().flatten() for parameter in member.parameters()] for member in members]
        self.weights = [
            torch.stack([torch.cat([value[i] for i in block]) for value in values]).requires_grad_()
            for block in self.blocks
        ]
        self.buffers = dict(self.template.named_buffers())

    def to(self, device: torch.device, dtype: torch.dtype) -> Ensemble:
        """Move parameters and buffers, and cast those that are floating point."""
        self.weights = [block.detach().to(device, dtype).requires_grad_() for block in self.weights]
        self.buffers = {
            name: buffer.to(device, dtype if buffer.is_floating_point() else buffer.dtype)
            for name, buffer in self.buffers.items()
        }
        return self

    def __len__(self) -> int:
        return len(self.weights[0])

    def parameters(self, weights: Sequence[Float[Tensor, "members numbers"]]) -> dict[str, Float[Tensor, "members *_"]]:
        """Every parameter, or whatever lies in blocks as the parameters do, such as gradients.

        All but vectors fill their memory in order, for one model as for several: what reads them later multiplies them
        as they lie, and so rounds alike.
        """
        found = {}
        for block, numbers in zip(self.blocks, weights, strict=True):
            parts = [numbers] if len(block) == 1 else numbers.split([self.sizes[i] for i in block], 1)
            for i, part in zip(block, parts, strict=True):
                ordered = part.contiguous() if len(self.shapes[i]) > 1 else part
                found[i] = ordered.view(-1, *self.shapes[i])
        return {name: found[i] for i, name in enumerate(self.names)}

    def rows(self, weights: Sequence[Float[Tensor, "members numbers"]]) -> Float[Tensor, "members parameters"]:
        """One vector for each model, in the order of its parameters."""
        parts = self.parameters(weights).values()
        return torch.cat([part.reshape(len(weights[0]), -1) for part in parts], 1)

    def state(self, member: int) -> dict[str, Tensor]:
        """Parameters and buffers of one member, for `nn.Module.load_state_dict`."""
        own = self.parameters([block.detach()[member : member + 1] for block in self.weights])
        return {name: part[0] for name, part in own.items()} | self.buffers

    def __call__(
        self,
        inputs: Float[Tensor, "members batch tokens features"] | Int[Tensor, "members batch tokens ids"],
        weights: Sequence[Float[Tensor, "members numbers"]] | None = None,
        valid: Bool[Tensor, "members batch tokens"] | None = None,
    ) -> Float[Tensor, "members batch tokens outputs"]:
        """Every member on its own inputs.

        Args:
            weights: in place of the current ones.
            valid: True at real tokens; all are if not given, or for ids those that are not padding.
        """
        stacked = self.parameters(self.weights if weights is None else weights)
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
