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


class _Recorder(TorchDispatchMode):
    """Writes down every operation that reaches the backend, on real tensors.

    A view of something computed here is written as one as_strided of it, however many steps led there: with equal
    shapes all strides are equal. Views of inputs stay as they are, since inputs may lie anywhere.
    """

    def __init__(self, inputs: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.graph, self.constants = Graph(), torch.nn.Module()
        self.nodes: dict[int, Node] = {}
        self.tensors: dict[Node, Tensor] = {}
        self.bases: dict[int, Node] = {}
        for i, tensor in enumerate(inputs):
            self._name(tensor, self.graph.placeholder(f"input_{i}"))

    def node(self, tensor: Tensor) -> Node:
        """The node that computes `tensor`; one that nobody computed here is a constant."""
        if id(tensor) not in self.nodes:
            name = f"constant_{len(self.tensors)}"
            self.constants.register_buffer(name, tensor.detach())
            self._name(tensor, self.graph.get_attr(name))
        return self.nodes[id(tensor)]

    def _name(self, tensor: Tensor, node: Node) -> None:
        # Kept alive: neither an id nor a storage must be given to another tensor.
        self.tensors[node] = tensor
        self.nodes[id(tensor)] = node

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        base = self.bases.get(id(args[0])) if func.is_view and isinstance(result, Tensor) else None
        if base is not None:
            shape, strides, offset = tuple(result.shape), result.stride(), result.storage_offset()
            node = self.graph.call_function(torch.ops.aten.as_strided.default, (base, shape, strides, offset))
            self._name(result, node)
            self.bases[id(result)] = base
            return result
        arguments, keywords = tree_map_only(Tensor, self.node, (list(args), kwargs or {}))
        node = self.graph.call_function(func, tuple(arguments), keywords)
        if isinstance(result, Tensor):
            self._result(result, node, func.is_view)
        elif isinstance(result, (tuple, list)):
            for place, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._result(part, self.graph.call_function(operator.getitem, (node, place)), func.is_view)
        else:
            raise TypeError(
                f"{func} turns a tensor into {type(result).__name__}, which a list of operations cannot follow"
            )
        return result

    def _result(self, tensor: Tensor, node: Node, view: bool) -> None:
        if id(tensor) in self.nodes:
            # Written in place: later readers must come after this operation, and the list keeps its order.
            return
        self._name(tensor, node)
        if not view:
            self.bases[id(tensor)] = node


aten = torch.ops.aten
IN_PLACE: dict[Any, Any] = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.mul.Scalar: aten.mul_.Scalar,
    aten.div.Tensor: aten.div_.Tensor,
    aten.neg.default: aten.neg_.default,
    aten.exp.default: aten.exp_.default,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
}
"""Operations element by element, and their forms that write over the first argument."""


def _write_over(graph: Graph, tensors: dict[Node, Tensor]) -> None:
    """Let an operation write over an argument that nobody reads later: half of the time of a small model goes into
    moving numbers. The numbers stay the same ones."""
    storage = {node: tensor.untyped_storage().data_ptr() for node, tensor in tensors.items()}
    taken = {storage[node] for node in tensors if node.op in ("placeholder", "get_attr")}
    last = {storage[read]: node for node in graph.nodes for read in node.all_input_nodes if read in storage}

    def free(argument: Any, node: Node) -> bool:
        if argument not in tensors or storage[argument] in taken or last[storage[argument]] is not node:
            return False
        old, new = (
            (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
            for tensor in (tensors[argument], tensors[node])
        )
        return old == new and sum(storage[read] == storage[argument] for read in node.all_input_nodes) == 1

    for node in graph.nodes:
        if node.target in IN_PLACE:
            commutes = node.target in (aten.add.Tensor, aten.mul.Tensor) and not node.kwargs
            if commutes and not free(node.args[0], node) and free(node.args[1], node):
                node.args = node.args[::-1]
            if free(node.args[0], node):
                node.target = IN_PLACE[node.target]
        elif node.target is aten.gelu_backward.default and free(node.args[0], node):
            node.target = aten.gelu_backward.grad_input
            node.kwargs = {**node.kwargs, "grad_input": node.args[0]}


Program = Callable[..., tuple[Tensor, ...]]


def record(function: Program, *inputs: Tensor) -> Program:
    """`function` as a flat list of operations: the same ones in the same order, and so the same bits.

    Args:
        function: of tensors alone; what it does must not depend on their values.
        inputs: examples; the result is valid for tensors of their shapes and types, and needs no gradient.

    Raises:
        TypeError: if the function looks at a value.
    """
    recorder = _listen(function, *inputs)
    _write_over(recorder.graph, recorder.tensors)
    return _replay(GraphModule(recorder.constants, recorder.graph))


def fused(function: Program, *inputs: Tensor) -> Program:
    """`record`, compiled by torch: everything between two matrix products becomes one loop. It takes up to half a
    minute, gives other last bits, and trains a small network up to twice as fast.

    Raises:
        BadInput: if there is no compiler, see `need_compiler`.
        TypeError: as `record`.
    """
    need_compiler(inputs[0].device)
    recorder = _listen(function, *inputs)
    # Compiled programs are not kept for other processes: torch would unpickle them.
    options: dict[str, Any] = {"fx_graph_cache": False, "compile_threads": 1}
    program = GraphModule(recorder.constants, recorder.graph)
    return _replay(torch.compile(program, fullgraph=True, dynamic=False, options=options))


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


def _listen(function: Program, *inputs: Tensor) -> _Recorder:
    recorder = _Recorder(inputs)
    with recorder:
        outputs = function(*inputs)
    recorder.graph.output(tuple(recorder.node(output) for output in outputs))
    recorder.graph.eliminate_dead_code()
    return recorder


def _replay(program: Program) -> Program:
    @torch.no_grad()
    def replay(*tensors: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = program(*tensors)
        return result

    return replay
