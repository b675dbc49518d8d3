"""What recorded operations are replaced by gives the same numbers up to rounding, and the memory it is meant to give."""

import pytest
import torch

from headcount.experiments import products, rewriting
from headcount.experiments.products import suits
from headcount.experiments.recording import record

aten = torch.ops.aten


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def agree(function, *inputs):
    """The calls of the recorded function, which must agree with the plain one, twice."""
    program = record(function, *(torch.zeros_like(tensor) for tensor in inputs))
    for scale in (1.0, -0.5):
        given = [scale * tensor if tensor.is_floating_point() else tensor for tensor in inputs]
        for ours, plain in zip(program(*given), function(*given), strict=True):
            assert ours.shape == plain.shape
            assert torch.allclose(ours, plain, atol=1e-12)
    return [call for call, _, _ in program.calls]


def copies(calls):
    return calls.count(aten.copy_.default._op)


def test_a_product_that_is_copied_transposed_is_computed_transposed():
    def function(a, b):
        return ((a @ b).transpose(1, 2).contiguous().exp(),)

    assert copies(agree(function, drawn(3, 5, 4), drawn(3, 4, 6))) == 0


def test_a_product_that_is_copied_across_its_rows_is_copied_along_them():
    def function(a, b):
        heads = (a @ b).view(2, 3, 8, 5)
        return (heads.permute(0, 3, 1, 2).contiguous().reshape(2, 5, 24).exp(),)

    program = record(function, drawn(6, 8, 4), drawn(6, 4, 5))
    (source,) = (given[1] for call, given, _ in program.calls if call is aten.copy_.default._op)
    assert source.stride(-1) == 1
    agree(function, drawn(6, 8, 4), drawn(6, 4, 5))


def test_matrices_that_lie_across_are_put_in_order_before_they_are_multiplied():
    def function(a, b, c):
        slices = (a @ b).view(1, 6, 7, 5).permute(0, 3, 1, 2).view(5, 6, 7)
        return slices @ c, slices.transpose(1, 2) @ c.transpose(1, 2)

    inputs = drawn(1, 42, 4), drawn(1, 4, 5), drawn(5, 7, 6)
    program = record(function, *inputs)
    assert all(
        1 in factor.stride()[1:] for call, given, _ in program.calls if call is aten.bmm.out._op for factor in given
    )
    assert copies(agree(function, *inputs)) == 0


def test_what_else_is_read_of_a_product_stays_where_it_was():
    def function(a, b):
        product = a @ b
        flat = product.transpose(1, 2).contiguous()
        seen = product[:, 1:].transpose(1, 2)
        return flat.exp(), seen.contiguous(), product.sum(1)

    agree(function, drawn(3, 5, 4), drawn(3, 4, 6))


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (0, 1, 3, 2)])
@pytest.mark.parametrize("keepdim", [True, False])
def test_short_rows_are_summed_however_they_lie(axes, keepdim):
    x = drawn(3, 4, 2, 7).permute(axes)
    agree(lambda x: (x.mul(2.0).sum(-1, keepdim=keepdim), x.permute(axes).sum(-1)), x)


def test_layer_norm_and_embeddings_with_their_gradients():
    def function(ids, table, weight, bias):
        leaves = [part.detach().requires_grad_() for part in (table, weight, bias)]

        def one(ids, table, weight, bias):
            rows = torch.nn.functional.embedding(ids, table)
            return torch.nn.functional.layer_norm(rows, (6,), weight, bias).sin()

        out = torch.vmap(one)(ids, *leaves)
        return out.detach(), *torch.autograd.grad(out.sum(), leaves)

    ids = torch.randint(0, 9, (2, 4, 5), generator=torch.Generator().manual_seed(0))
    calls = agree(function, ids, drawn(2, 9, 6), drawn(2, 6), drawn(2, 6))
    assert aten.native_layer_norm.out._op not in calls
    assert aten.embedding_dense_backward.out._op not in calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int16])
@pytest.mark.parametrize("width", [2, 4, 8, 16, 3])
@pytest.mark.parametrize("shift", [0, 1])
def test_runs_of_any_length_are_copied_whole(dtype, width, shift):
    def function(x):
        moved = x[:, :, shift:, shift:].transpose(1, 2)
        return moved.contiguous(), moved[:1, :1, :1].clone(), moved.transpose(0, 3).contiguous()

    x = (100 * drawn(2, 3, 4 + shift, width + shift)).to(dtype)
    program = record(function, torch.zeros_like(x))
    assert all(torch.equal(ours, plain) for ours, plain in zip(program(x), function(x), strict=True))


def test_short_runs_go_in_columns_of_sixteen_bytes():
    x = drawn(2, 3, 4, 8, dtype=torch.float32)
    (first, *_), (second, *_) = (given for _, given, _ in record(lambda x: (x.transpose(1, 2).contiguous(),), x).calls)
    assert first.dtype == second.dtype == torch.complex128


def test_large_products_go_one_by_one_where_half_of_the_processor_is_idle(monkeypatch):
    monkeypatch.setattr(products, "half_used", lambda: True)
    a, b = drawn(3, 160, 170, dtype=torch.float32), drawn(3, 170, 180, dtype=torch.float32)
    assert suits(a, b)
    assert not suits(a.double(), b.double())
    assert not suits(a.transpose(1, 2)[:, :160, :160], b[:, :160])
    program = record(lambda a, b: (a @ b,), a, b)
    assert [call for call, _, _ in program.calls] == [torch.ops.headcount.products.out._op]
    ours = program(a, b)[0].clone()
    assert torch.allclose(ours, a @ b, atol=1e-4)
    assert torch.equal(record(lambda a, b: (a @ b,), a[1:2], b[1:2])(a[1:2], b[1:2])[0], ours[1:2])


def test_a_product_of_tiny_matrices_is_a_sum_of_products():
    a, b = drawn(3, 9, 8), drawn(3, 9, 8, seed=1).transpose(1, 2)
    assert torch.allclose(rewriting.COMPILED_PARTS[aten.bmm.default](a, b), a @ b, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.bfloat16])
def test_narrow_numbers_and_flags_are_left_alone(dtype):
    x = drawn(4, 5).gt(0).to(dtype)
    program = record(lambda x: (x * 1, x.sum(-1)), x)
    assert all(torch.equal(ours, plain) for ours, plain in zip(program(x), (x * 1, x.sum(-1)), strict=True))


def test_times_one_is_nothing():
    assert agree(lambda x: ((x * 1).exp(), x * 1.5), drawn(3)) == [aten.exp.out._op, aten.mul.out._op]
