"""Operations of a recorded step that others replace, which give the same numbers sooner.

On a CPU, some kernels of torch take several times as long as a few plain ones that come to the same: those that work row
by row, where rows are short. And a product that is copied into the order of its transpose can be computed in that order.
Results agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node, map_arg

from headcount.experiments.products import products, suits

aten = torch.ops.aten

WIDE = (torch.float32, torch.float64)
"""What is summed in its own precision; narrower numbers are not."""

SHORT = 16
"""Numbers in a row below which a sum over rows takes longer than a product with ones."""


def _row_sums(x: Tensor, weight: float) -> Tensor:
    """Sums over the last axis, times `weight`, which lie as the rows of `x` do; see `_rows_lie_close`."""
    order = sorted(range(x.dim() - 1), key=x.stride, reverse=True)
    rows = x.permute(*order, -1)
    ones = torch.full(x.shape[-1:], weight, dtype=x.dtype, device=x.device)
    sums = rows.reshape(-1, x.shape[-1]).mv(ones).reshape(rows.shape[:-1])
    return sums.permute(*sorted(range(len(order)), key=order.__getitem__)).unsqueeze(-1)


def _rows_lie_close(x: Tensor) -> bool:
    """Whether `x` fills its memory and the last axis is the innermost."""
    order = sorted(range(x.dim() - 1), key=x.stride, reverse=True)
    return x.dim() > 1 and x.numel() > 0 and x.permute(*order, -1).is_contiguous()


def _sum(x: Tensor, axes: list[int], keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    last = dtype is None and x.dtype in WIDE and [*axes] in ([-1], [x.dim() - 1])
    if not last or not 1 < x.shape[-1] < SHORT or not _rows_lie_close(x):
        return NotImplemented
    sums = _row_sums(x, 1.0)
    return sums if keepdim else sums.squeeze(-1)


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    plain = weight is None and bias is None and len(shape) == 1 and x.dtype in WIDE
    if not plain or not x.is_contiguous() or not x.numel():
        return NotImplemented
    mean = _row_sums(x, 1 / shape[0])
    centred = x - mean
    scale = (_row_sums(centred * centred, 1 / shape[0]) + epsilon).rsqrt()
    return centred * scale, mean, scale


def _embedding_backward(gradient: Tensor, ids: Tensor, count: int, padding: int, by_frequency: bool) -> Tensor:
    if padding >= 0 or by_frequency:
        return NotImplemented
    total = torch.zeros(count, gradient.shape[-1], dtype=gradient.dtype, device=gradient.device)
    return total.index_add(0, ids.flatten(), gradient.reshape(-1, gradient.shape[-1]))


def _product(a: Tensor, b: Tensor) -> Tensor:
    return products(a, b) if suits(a, b) else NotImplemented


def _written_out(a: Tensor, b: Tensor) -> Tensor:
    """A product of tiny matrices as a sum of products: one loop with what comes before and after."""
    if max(*a.shape[1:], b.shape[2]) > SHORT:
        return _product(a, b)
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def _times(x: Tensor, factor: Any) -> Tensor:
    # vmap multiplies the bias of every linear map by one, and its gradient.
    one = isinstance(factor, int) and factor == 1 and x.dtype in WIDE
    return aten.alias.default(x) if one else NotImplemented


PARTS: dict[Any, Callable[..., Any]] = {
    aten.mul.Tensor: _times,
    aten.mul.Scalar: _times,
    aten.bmm.default: _product,
    aten.sum.dim_IntList: _sum,
    aten.native_layer_norm.default: _layer_norm,
    aten.embedding_dense_backward.default: _embedding_backward,
}
"""By what an operation is replaced on a CPU; NotImplemented where it had better stay."""

COMPILED_PARTS = {**PARTS, aten.bmm.default: _written_out}
"""The same where what is between large products is compiled."""


FEW = 8
"""Columns below which a product takes several times as long as with as few rows."""


def turn_products(graph: Graph, recorded: dict[Node, Any]) -> None:
    """Where A B is only copied in an order that goes across its rows, compute (B^T A^T)^T: then the copy goes along
    rows, and is none at all if the order was that of the transpose.

    Args:
        graph: of operations on tensors; changed.
        recorded: what every node gave; kept in step.
    """
    product: Any
    for product in graph.find_nodes(op="call_function", target=aten.bmm.default):
        seen = product
        while len(seen.users) == 1 and _shows(user := next(iter(seen.users)), recorded):
            seen = user
        order, across = _order(recorded[seen]), _order(recorded[product].transpose(1, 2))
        if not order or order[-1][1] == 1 or order[-1][1] != across[-1][1]:
            continue
        few, many = recorded[product].shape[1:]
        copy = None if few < FEW <= many else _copied(graph, seen, recorded)
        if copy is None:
            continue
        with graph.inserting_before(product):
            factors = {graph.call_function(aten.transpose.int, (one, 1, 2)): one for one in product.args[::-1]}
            turned = graph.call_function(aten.bmm.default, tuple(factors))
            back = graph.call_function(aten.transpose.int, (turned, 1, 2))
        recorded |= {factor: recorded[one].transpose(1, 2) for factor, one in factors.items()}
        if order == across:
            # The memory of the copy is that of the product.
            recorded[turned] = recorded[copy].view(recorded[product].transpose(1, 2).shape)
            with graph.inserting_before(copy):
                shown = graph.call_function(aten.view.default, (turned, list(recorded[copy].shape)))
            recorded[shown] = recorded[copy]
            copy.replace_all_uses_with(shown)
        else:
            product.replace_all_uses_with(back)
            recorded[back] = recorded[product]
            recorded[turned] = recorded[product].transpose(1, 2).contiguous()
            _renew(back, recorded[turned].transpose(1, 2), recorded)
    graph.eliminate_dead_code()


def _copied(graph: Graph, seen: Node, recorded: dict[Node, Any]) -> Node | None:
    """The copy of a view that is all that is read of it. One is made if matrices are multiplied that lie neither along
    rows nor along columns: torch would copy each by itself. Among several models it is there already."""
    users, here = [*seen.users], recorded[seen]
    if [user.target for user in users] == [aten.clone.default]:
        return users[0] if recorded[users[0]].is_contiguous() else None
    multiplied = all(reader.target is aten.bmm.default for reader in _readers(seen, recorded))
    if here.dim() != 3 or 1 in here.stride()[1:] or not multiplied:
        return None
    with graph.inserting_after(seen):
        copy = graph.call_function(aten.clone.default, (seen,), {"memory_format": torch.contiguous_format})
    for user in users:
        user.replace_input_with(seen, copy)
    recorded[copy] = here
    _renew(copy, here.contiguous(), recorded)
    return copy


def _readers(node: Node, recorded: dict[Node, Any]) -> Iterator[Node]:
    """Who reads a node, or views of it."""
    for user in node.users:
        yield from _readers(user, recorded) if _shows(user, recorded) else [user]


def _renew(node: Any, value: Tensor, recorded: dict[Node, Any]) -> None:
    """Note that a node gives `value`, which lies elsewhere than what it or its like gave, and so do its views."""
    views = [user for user in node.users if _shows(user, recorded)]
    recorded[node] = value
    for user in views:
        _renew(user, user.target(*map_arg(user.args, recorded.__getitem__), **user.kwargs), recorded)


def _shows(node: Any, recorded: dict[Node, Any]) -> bool:
    """Whether a node is a view of its one argument."""
    if node.op != "call_function" or len(node.all_input_nodes) != 1:
        return False
    one, other = recorded[node], recorded[node.all_input_nodes[0]]
    tensors = isinstance(one, Tensor) and isinstance(other, Tensor)
    return tensors and one.data_ptr() == other.data_ptr() and not node.target._schema.is_mutable


def _order(x: Tensor) -> list[tuple[int, int]]:
    """Lengths and strides of the axes of `x`, those merged that can be: the order in which it goes through memory."""
    axes: list[tuple[int, int]] = []
    for length, stride in zip(x.shape, x.stride(), strict=True):
        if length == 1:
            continue
        if axes and axes[-1][1] == length * stride:
            axes[-1] = (axes[-1][0] * length, stride)
        else:
            axes.append((length, stride))
    return axes
