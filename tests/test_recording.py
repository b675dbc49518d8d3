"""A recorded program does what the function did, whatever lies behind its inputs, and says when it cannot."""

import pytest
import torch

from headcount.experiments.recording import record


def test_views_writes_in_place_and_several_results():
    def function(x, y):
        table = torch.zeros(3, 4)
        table[1:] += x[:2].transpose(0, 1).reshape(2, 4) if x.shape[1] == 2 else x[:2]
        values, places = (table @ y).t().relu().max(0)
        first, second = values.split([1, 2])
        return first * 2, (second + places[1:]).expand(2, 2).t()

    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(9, 8, generator=generator) for _ in range(4)]
    program = record(function, made[0][:3, :4], made[1][:4, :5])
    # The same shapes, but elsewhere in memory and with other strides.
    x, y = made[2].t()[2:5, 1:5], made[3][3:7, 2:7]
    for ours, plain in zip(program(x, y), function(x, y), strict=True):
        assert torch.equal(ours, plain)
        assert ours.shape == plain.shape


def test_what_the_function_closes_over_is_a_constant():
    weight = torch.ones(2)
    program = record(lambda x: (x * weight,), torch.zeros(2))
    assert torch.equal(program(torch.tensor([3.0, 4.0]))[0], torch.tensor([3.0, 4.0]))


def test_gradients_are_recorded():
    def function(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(x.sigmoid().pow(2).sum(), x)

    program, x = record(function, torch.zeros(3)), torch.tensor([1.0, -2.0, 0.5])
    assert torch.equal(program(x)[0], function(x)[0])
    assert not program(x)[0].requires_grad


def test_a_function_that_looks_at_a_value_is_refused():
    with pytest.raises(TypeError, match="cannot follow"):
        record(lambda x: (x * 2 if x.sum() > 0 else x,), torch.ones(2))


def test_what_is_written_over_is_read_by_nobody_later():
    def function(x, y):
        first = x @ y
        second = first * 2.0
        third = y + second.exp().neg()
        window = second[:2]
        fourth = third.mul(third.t().contiguous())
        return first - 1.0, window.sum(0), fourth / 3.0, third

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 4, generator=generator) for _ in range(2))
    kept = x.clone(), y.clone()
    program = record(function, torch.zeros(4, 4), torch.ones(4, 4))
    for _ in range(2):
        assert all(torch.equal(ours, plain) for ours, plain in zip(program(x, y), function(x, y), strict=True))
        assert torch.equal(x, kept[0])
        assert torch.equal(y, kept[1])


def test_a_call_asks_for_no_memory_and_its_results_hold_until_the_next():
    def function(x):
        return (x.exp() @ x.neg()).mul(x + 1.0), x.sum(1)

    program, x = record(function, torch.zeros(8, 8)), torch.arange(64.0).reshape(8, 8).sin()
    with torch.profiler.profile(profile_memory=True) as profile:
        first = program(x)
    # Numbers like the 1 above become tensors of no size worth naming.
    assert sum(max(event.self_cpu_memory_usage, 0) for event in profile.events()) < x.nbytes
    assert all(torch.equal(one, other) for one, other in zip(first, function(x), strict=True))
    program(2 * x)
    assert all(torch.equal(one, other) for one, other in zip(first, function(2 * x), strict=True))


def test_what_a_function_closes_over_is_read_anew_at_every_call():
    weight = torch.ones(3)
    program = record(lambda x: ((weight.detach() * x).cumsum(0),), torch.zeros(3))
    weight.add_(1.0)
    assert program(torch.ones(3))[0].tolist() == [2.0, 4.0, 6.0]


def test_what_outlives_the_recording_keeps_its_numbers():
    kept = {}

    def function(x):
        mask = kept.setdefault("mask", torch.ones(3, 3).tril())
        return (x * mask,)

    record(function, torch.zeros(3, 3))
    assert torch.equal(kept["mask"], torch.ones(3, 3).tril())


def in_place_on_a_constant(x):
    total = torch.tensor([0.0, 0.0])
    total += x
    return (total * 1,)


@pytest.mark.parametrize(
    "function",
    [
        in_place_on_a_constant,
        lambda x: (x.add_(1.0),),
        lambda x: (x.exp().unsqueeze_(0).exp(),),
        lambda x: (x[x > 0],),
        lambda x: (x.nonzero(),),
    ],
)
def test_what_a_list_cannot_follow_is_refused(function):
    with pytest.raises(TypeError, match="list of operations"):
        record(function, torch.ones(2))


def test_lists_of_results():
    def function(x):
        return tuple(torch._foreach_mul([x, x.exp()], 2.0))

    program, x = record(function, torch.zeros(3)), torch.arange(3.0)
    assert all(torch.equal(one, other) for one, other in zip(program(x), function(x), strict=True))
