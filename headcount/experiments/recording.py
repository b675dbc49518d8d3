"""Record a function of tensors as a flat list of operations, to be replayed on tensors of the same shapes.

vmap and autograd take as long as the small matrix products that they arrange. The list that they come down to is always
the same, so it is taken down once. torch.fx.experimental's make_fx does that too, at twenty times the cost; that matters
where a list is replayed a few hundred times.
"""

from __future__ import annotations

import importlib.util
import operator
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from headcount.config import BadInput
from headcount.experiments.replaying import Replay
from headcount.experiments.rewriting import COMPILED_PARTS, PARTS, turn_products

Program = Callable[..., tuple[Tensor, ...]]


_UNSTEADY = {torch.Tag.inplace_view, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


class _Recorder(TorchDispatchMode):
    """Writes down every operation that reaches the backend, on real tensors."""

    def __init__(self, inputs: tuple[Tensor, ...], parts: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.parts = parts
        self.graph, self.constants = Graph(), torch.nn.Module()
        self.nodes: dict[int, Node] = {}
        self.results: dict[Node, Any] = {}
        for i, tensor in enumerate(inputs):
            self._name(tensor, self.graph.placeholder(f"input_{i}"))

    def node(self, tensor: Tensor) -> Node:
        """The node that computes `tensor`; one that nobody computed here is a constant."""
        if id(tensor) not in self.nodes:
            name = f"constant_{len(self.results)}"
            self.constants.register_buffer(name, tensor.detach())
            self._name(tensor, self.graph.get_attr(name))
        return self.nodes[id(tensor)]

    def _name(self, tensor: Tensor, node: Node) -> None:
        # Kept alive: neither an id nor a storage must be given to another tensor.
        self.results[node] = tensor
        self.nodes[id(tensor)] = node

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if _UNSTEADY & {*func.tags}:
            raise TypeError(f"{func} changes a form, or depends on a value, which a list of operations cannot follow")
        if func in self.parts and args[0].device.type == "cpu":
            with self:
                result = self.parts[func](*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = func(*args, **(kwargs or {}))
        arguments, keywords = tree_map_only(Tensor, self.node, (list(args), kwargs or {}))
        node = self.graph.call_function(func, tuple(arguments), keywords)
        self.results[node] = result
        if isinstance(result, Tensor):
            self._result(result, node)
        elif isinstance(result, (tuple, list)):
            for place, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._result(part, self.graph.call_function(operator.getitem, (node, place)))
        else:
            raise TypeError(
                f"{func} turns a tensor into {type(result).__name__}, which a list of operations cannot follow"
            )
        return result

    def _result(self, tensor: Tensor, node: Node) -> None:
        # What is written in place has a name: later readers come after this operation, since the list keeps its order.
        if id(tensor) not in self.nodes:
            self._name(tensor, node)


def _listen(function: Program, inputs: tuple[Tensor, ...], parts: dict[Any, Callable[..., Any]]) -> _Recorder:
    recorder = _Recorder(inputs, parts)
    with recorder:
        outputs = function(*inputs)
    assert isinstance(outputs, tuple)
    recorder.graph.output(tuple(recorder.node(output) for output in outputs))
    turn_products(recorder.graph, recorder.results)
    return recorder


def record(function: Program, *inputs: Tensor) -> Replay:
    """`function` as a flat list of operations, in the same order: the same ones, or where a CPU has faster ones those
    (see `rewriting`), which agree up to rounding. They write into memory that is laid out once, so a result holds until
    the next call. Sums over inputs that are not contiguous may round as those of contiguous ones do.

    Args:
        function: of tensors alone; what it does must not depend on their values. What it closes over is read anew at
            every call.
        inputs: examples; the result is valid for tensors of their shapes and types, and needs no gradient.

    Raises:
        TypeError: if the function looks at a value, or writes to what it is given or closes over.
    """
    # Recorded on the memory that inputs are copied to.
    places = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs)
    recorder = _listen(function, places, PARTS)
    return Replay(recorder.graph, recorder.results)


def fused(function: Program, *inputs: Tensor) -> Program:
    """`record`, compiled by torch: everything between two matrix products becomes one loop. It takes up to half a
    minute, and gives other last bits.

    Raises:
        BadInput: if there is no compiler, see `need_compiler`.
        TypeError: as `record`.
    """
    need_compiler(inputs[0].device)
    recorder = _listen(function, inputs, COMPILED_PARTS)
    # Compiled programs are not kept for other processes: torch would unpickle them.
    options: dict[str, Any] = {"fx_graph_cache": False, "compile_threads": 1}
    program = GraphModule(recorder.constants, recorder.graph)
    return torch.no_grad()(torch.compile(program, fullgraph=True, dynamic=False, options=options))


def need_compiler(device: torch.device) -> None:
    """Make sure that torch.compile has what it works with.

    Raises:
        BadInput: if it has not.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise BadInput("compiling for a GPU needs the package triton, which comes with torch for CUDA")
    elif not any(shutil.which(name) for name in filter(None, (os.environ.get("CXX"), "g++", "clang++"))):
        raise BadInput("compiling needs a C++ compiler: g++ or clang++ on the path, or CXX in the environment")
