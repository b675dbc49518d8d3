"""Replay a recorded list of operations in memory that is laid out beforehand.

Half of the time of a small model goes into asking for memory, describing views of it, and moving numbers. Here all of it
is settled once: every view is made, every operation is told where to write, and memory is used again as soon as its last
reader is done. What is left to do at a call is the operations themselves, in their order: the bits are the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node, map_arg

aten = torch.ops.aten
OVER: dict[Any, tuple[Any, tuple[int, ...], str | None]] = {
    aten.add.Tensor: (aten.add_.Tensor, (0, 1), None),
    aten.sub.Tensor: (aten.sub_.Tensor, (0,), None),
    aten.mul.Tensor: (aten.mul_.Tensor, (0, 1), None),
    aten.mul.Scalar: (aten.mul_.Scalar, (0,), None),
    aten.div.Tensor: (aten.div_.Tensor, (0,), None),
    aten.neg.default: (aten.neg_.default, (0,), None),
    aten.exp.default: (aten.exp_.default, (0,), None),
    aten.masked_fill.Scalar: (aten.masked_fill_.Scalar, (0,), None),
    aten.gelu_backward.default: (aten.gelu_backward.grad_input, (0,), "grad_input"),
    aten.mse_loss_backward.default: (aten.mse_loss_backward.grad_input, (1,), "grad_input"),
}
"""Operations element by element, their forms that may write over an argument, the places of such arguments, and the name
that a form has for where it writes. One without writes over its first: the two that may change places commute."""


class Replay:
    """A graph as a list of calls on tensors that stay where they are.

    Called with tensors shaped like its inputs; the results hold until the next call.

    Attributes:
        size: bytes of the memory that its numbers go through.
    """

    def __init__(self, graph: Graph, recorded: dict[Node, Any]) -> None:
        """Lay out the memory.

        Args:
            graph: of operations on tensors, without a choice that depends on a value.
            recorded: what every node gave when it was recorded; emptied here, so that its memory is free again. Inputs
                and constants stay where they are.

        Raises:
            TypeError: if an operation writes to an input or a constant.
        """
        self.inputs: list[tuple[Tensor, Tensor | None]] = []
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self.outputs: tuple[Tensor, ...] = ()
        layout = _Layout(graph, recorded)
        with torch.no_grad():
            for node in graph.nodes:
                if node.op == "placeholder":
                    place = layout.give(node)
                    self.inputs.append((place, place.detach() if layout.may_lie_anywhere(node) else None))
                elif node.op == "get_attr":
                    layout.give(node)
                elif node.op == "output":
                    (self.outputs,), _ = layout.arguments(node)
                else:
                    self._add(node, layout)
                layout.take_back(node)
        self.size = layout.size
        # An OpOverload is a layer of Python around what it calls.
        self.calls = [(getattr(call, "_op", call), *given) for call, *given in self.calls]

    def _add(self, node: Node, layout: _Layout) -> None:
        """The call that a node takes, if any."""
        arguments, keywords = layout.arguments(node)
        function: Any = node.target
        if function is operator.getitem or layout.is_view(node) or layout.is_constant(node):
            layout.values[node] = function(*arguments, **keywords)
        elif function._schema.is_mutable:
            layout.refuse_given(node)
            # What is written in place is known by the node that made it.
            self.calls.append((function, arguments, keywords))
        elif (place := layout.free_argument(node)) is not None:
            function, _, name = OVER[function]
            layout.pass_on(node.args[place], node)
            over = arguments[place]
            if name is None:
                self.calls.append((function, (over, *arguments[:place], *arguments[place + 1 :]), keywords))
            else:
                self.calls.append((function, arguments, {**keywords, name: over}))
        else:
            places = layout.lend(node)
            if function is aten.clone.default:
                self.calls += [(aten.copy_.default, pair, {}) for pair in _columns(layout.values[node], arguments[0])]
            else:
                self.calls.append(_into(function, places, arguments, keywords))

    @torch.inference_mode()
    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        for (place, own), tensor in zip(self.inputs, tensors, strict=True):
            if own is None:
                place.copy_(tensor)
            else:
                alike = (tensor.shape, tensor.stride(), tensor.dtype) == (own.shape, own.stride(), own.dtype)
                place.set_(tensor if alike else own.copy_(tensor))  # type: ignore[call-overload]
        for function, arguments, keywords in self.calls:
            function(*arguments, **keywords)
        return self.outputs


class _Layout:
    """Where the value of every node lies."""

    def __init__(self, graph: Graph, recorded: dict[Node, Any]) -> None:
        self.given = {node: recorded[node] for node in recorded if node.op in ("placeholder", "get_attr")}
        self.forms = {node: [_form(part) for part in _parts(value)] for node, value in recorded.items()}
        self.single = {node for node, value in recorded.items() if isinstance(value, Tensor)}
        self.storages = {node: [form.storage for form in forms if form] for node, forms in self.forms.items()}
        self.written = {storage for node in graph.nodes for storage in self._written(node)}
        # From here on forms are needed, and no numbers.
        recorded.clear()
        self.values: dict[Node, Any] = {}
        self.last: dict[int, Node] = {}
        for node in graph.nodes:
            self.last |= dict.fromkeys(self._read(node), node)
        self.lent: dict[int, Tensor] = {}
        self.spare: list[Tensor] = []
        self.size = 0

    def _read(self, node: Node) -> list[int]:
        """The storages behind the arguments of a node, one entry for each argument that lies there."""
        return [storage for argument in node.all_input_nodes for storage in self.storages[argument]]

    def arguments(self, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a node, at their places."""
        found: tuple[tuple[Any, ...], dict[str, Any]] = map_arg((node.args, node.kwargs), self.values.__getitem__)
        return found

    def give(self, node: Node) -> Tensor:
        """An input or a constant: it lies where it was recorded."""
        self.values[node] = self.given[node]
        return self.given[node]

    def may_lie_anywhere(self, node: Node) -> bool:
        """Whether an input is read as it is only: it need not be copied to where it was recorded."""
        return all(user.op == "call_function" and not self.is_view(user) for user in node.users)

    def refuse_given(self, node: Node) -> None:
        """A call must find inputs and constants as the one before did.

        Raises:
            TypeError: if a node writes to one.
        """
        places = {storage for given in self.given for storage in self.storages[given]}
        if any(storage in places for storage in self._written(node)):
            raise TypeError(f"{node.target} writes to an input or a constant, which a list of operations must not")

    def _written(self, node: Node) -> list[int]:
        """The storages that a node writes to, beyond that of its own result."""
        if node.op != "call_function" or node.target is operator.getitem:
            return []
        pairs = zip(node.target._schema.arguments, node.args, strict=False)  # type: ignore[union-attr]
        values = [value for argument, value in pairs if argument.alias_info and argument.alias_info.is_write]
        return [storage for value in values if isinstance(value, Node) for storage in self.storages[value]]

    def is_constant(self, node: Node) -> bool:
        """Whether a node makes the same numbers of nothing at every call, and nobody writes over them."""
        function: Any = node.target
        drawn = torch.Tag.nondeterministic_seeded in function.tags
        return not node.all_input_nodes and not drawn and self.written.isdisjoint(self.storages[node])

    def is_view(self, node: Node) -> bool:
        """Whether a node shows part of its arguments and computes nothing."""
        function: Any = node.target
        return not function._schema.is_mutable and {*self.storages[node]} <= {*self._read(node)}

    def free_argument(self, node: Node) -> int | None:
        """The place of an argument that a node may write over: nobody reads it later, and it lies as the result would."""
        _, places, _ = OVER.get(node.target, (None, (), None))
        # With alpha, a sum does not commute.
        for place in places[:1] if node.kwargs else places:
            argument = node.args[place]
            if isinstance(argument, Node) and argument in self.single:
                (storage,), (old,), (new,) = self.storages[argument], self.forms[argument], self.forms[node]
                alone = self._read(node).count(storage) == 1 and self.last[storage] is node
                if storage in self.lent and alone and old and new and old.lies_like(new):
                    return place
        return None

    def pass_on(self, argument: Any, node: Node) -> None:
        """Let a node have the place of its argument."""
        (old,), (new,) = self.storages[argument], self.storages[node]
        self.lent[new] = self.lent.pop(old)
        self.values[node] = self.values[argument]

    def lend(self, node: Node) -> tuple[Tensor | None, ...]:
        """Places for what a node gives: the least spare memory that holds it, the latest used first, or new memory."""
        places = tuple(form and self._place(form) for form in self.forms[node])
        self.values[node] = places[0] if node in self.single else places
        return places

    def _place(self, form: _Form) -> Tensor:
        fitting = [
            memory
            for memory in self.spare
            if memory.device == form.device and form.size <= len(memory) <= 2 * form.size
        ]
        if fitting:
            memory = min(reversed(fitting), key=len)
            self.spare = [other for other in self.spare if other is not memory]
        else:
            memory = torch.empty(form.size, dtype=torch.uint8, device=form.device)
            self.size += form.size
        self.lent[form.storage] = memory
        place = torch.empty(0, dtype=form.dtype, device=form.device)
        return place.set_(memory.untyped_storage(), form.offset, form.shape, form.stride)

    def take_back(self, node: Node) -> None:
        """Memory that nobody reads after this node is spare."""
        for storage in {*self._read(node), *self.storages.get(node, ())}:
            if storage in self.lent and self.last.get(storage, node) is node:
                self.spare.append(self.lent.pop(storage))


def _parts(value: Any) -> Iterable[Any]:
    return (value,) if isinstance(value, Tensor) else value


class _Form(NamedTuple):
    """How a tensor lies in memory; `storage` tells memories apart, and `size` is that of the memory in bytes."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    storage: int
    size: int

    def lies_like(self, other: _Form) -> bool:
        """Whether two are alike but for the memory they lie in."""
        return self[:5] == other[:5]


def _form(part: Any) -> _Form | None:
    if not isinstance(part, Tensor):
        return None
    memory, offset = part.untyped_storage(), int(part.storage_offset())
    size = max(memory.nbytes(), 1)
    return _Form(part.shape, part.stride(), offset, part.dtype, part.device, memory.data_ptr(), size)


def _columns(place: Tensor, source: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What to copy, to where, to copy all of `source`. Runs of 16 or 32 bytes between which others lie go as columns of
    numbers of 16 bytes: torch's loop takes longer to begin such a run than to copy it."""
    pair, wide = [place.squeeze(), source.squeeze()], 16 // place.element_size()
    short = pair[0].dim() > 1 and place.dtype == source.dtype and pair[0].shape[-1] in (wide, 2 * wide)
    if not short or place.device.type != "cpu" or all(tensor.stride(-2) == tensor.shape[-1] for tensor in pair):
        return [(place, source)]
    steps = [step for tensor in pair for step in (*tensor.stride()[:-1], tensor.storage_offset())]
    if any(tensor.stride(-1) != 1 for tensor in pair) or any(step % wide for step in steps):
        return [(place, source)]
    return list(zip(*(tensor.view(torch.complex128).unbind(-1) for tensor in pair), strict=True))


def _into(
    function: Any, places: tuple[Tensor | None, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The call of an operation that writes to `places`."""
    found = _writing(function)
    if found is not None and None not in places:
        writing, names = found
        return writing, arguments, {**keywords, **dict(zip(names, places, strict=True))}

    def copied(*arguments: Any, **keywords: Any) -> None:
        for place, part in zip(places, _parts(function(*arguments, **keywords)), strict=True):
            if place is not None:
                place.copy_(part)

    return copied, arguments, keywords


@lru_cache(maxsize=1024)
def _writing(function: Any) -> tuple[Any, tuple[str, ...]] | None:
    """The form of an operation that is told where to write, and what it calls these places."""
    if function is aten.mul.Scalar:
        return aten.mul.out, ("out",)
    wanted = [(argument.name, str(argument.type)) for argument in function._schema.arguments]
    for name in function.overloadpacket.overloads():
        form = getattr(function.overloadpacket, name)
        given = [(argument.name, str(argument.type)) for argument in form._schema.arguments if not argument.is_out]
        outs = [argument for argument in form._schema.arguments if argument.is_out]
        places = tuple(argument.name for argument in outs if str(argument.type) == "Tensor")
        if given == wanted and len(places) == len(outs) == len(function._schema.returns):
            return form, places
    return None
