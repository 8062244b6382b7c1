"""Adam for members equals torch's for each of them, and leaves the dead alone."""

import math

import pytest
import torch

from unbraid.training.adam import StackedAdam

RATES = (1e-2, 3e-3, 1e-4)


def gradients_at(step, count=3):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(count, *shape, generator=generator, dtype=torch.float64) for shape in ((4, 3), (4,), ())]


@pytest.fixture
def parameters():
    return [tensor.requires_grad_() for tensor in gradients_at(1000)]


def test_equals_torch_for_each_member(parameters):
    alone = [[p[m].detach().clone().requires_grad_() for p in parameters] for m in range(3)]
    theirs = [torch.optim.Adam(alone[m], lr=RATES[m], betas=(0.5, 0.9), eps=1e-6) for m in range(3)]
    ours = StackedAdam(parameters, torch.tensor(RATES, dtype=torch.float64), betas=(0.5, 0.9), eps=1e-6)
    for step in range(50):
        gradients = gradients_at(step)
        ours.step(gradients, torch.ones(3, dtype=torch.bool))
        for m in range(3):
            for parameter, gradient in zip(alone[m], gradients, strict=True):
                parameter.grad = gradient[m].clone()
            theirs[m].step()
    for m in range(3):
        for stacked, single in zip(parameters, alone[m], strict=True):
            torch.testing.assert_close(stacked[m], single, rtol=1e-12, atol=1e-12)


def test_a_dead_member_stays_and_the_others_go_on(parameters):
    reference = [p.detach().clone().requires_grad_() for p in parameters]
    ours = StackedAdam(parameters, torch.tensor(RATES, dtype=torch.float64))
    plain = StackedAdam(reference, torch.tensor(RATES, dtype=torch.float64))
    for step in range(10):
        gradients = gradients_at(step)
        plain.step(gradients, torch.ones(3, dtype=torch.bool))
        if step == 4:
            before = [p[1].detach().clone() for p in parameters]
        if step >= 4:
            for gradient in gradients:
                gradient[1] = math.nan
        ours.step(gradients, torch.tensor([True, step < 4, True]))
    for i, (made, whole) in enumerate(zip(parameters, reference, strict=True)):
        assert torch.equal(made[1], before[i])
        assert torch.equal(made[0], whole[0])
        assert torch.equal(made[2], whole[2])


def test_state_survives(parameters):
    ours = StackedAdam(parameters, torch.tensor(RATES, dtype=torch.float64))
    for step in range(3):
        ours.step(gradients_at(step), torch.ones(3, dtype=torch.bool))
    copies = [p.detach().clone().requires_grad_() for p in parameters]
    again = StackedAdam(copies, torch.tensor(RATES, dtype=torch.float64))
    for name, tensor in again.tensors().items():
        tensor.copy_(ours.tensors()[name])
    for adam in (ours, again):
        adam.step(gradients_at(9), torch.ones(3, dtype=torch.bool), share=0.5)
    assert all(torch.equal(a, b) for a, b in zip(parameters, copies, strict=True))


@pytest.mark.parametrize(
    "shapes", [((4, 3), (3000,), (), (2, 3, 4, 4)), ((16, 2), (3200,), (16,), (2, 8, 4, 4))], ids=["any", "aligned"]
)
def test_the_kernel_updates_like_the_formula_and_writes_copies(shapes):
    generator = torch.Generator().manual_seed(0)

    def draw():
        return [torch.randn(3, *shape, generator=generator) for shape in shapes]

    plain = draw()
    fused = [parameter.clone() for parameter in plain]
    copies = [None, *(torch.zeros_like(parameter, dtype=torch.bfloat16) for parameter in fused[1:])]
    settings = {"weight_decay": 0.1, "betas": (0.5, 0.99)}
    expected = StackedAdam(plain, torch.tensor(RATES), **settings)
    ours = StackedAdam(fused, torch.tensor(RATES), copies, **settings)
    expected.fused, ours.fused = False, True
    for step in range(5):
        gradients, alive = draw(), torch.tensor([True, step < 3, True])
        gradients[3] = gradients[3].bfloat16()
        expected.step([gradient.float() for gradient in gradients], alive, 0.5)
        ours.step(gradients, alive, 0.5)
    for made, wanted in zip(fused, plain, strict=True):
        torch.testing.assert_close(made, wanted, rtol=2e-6, atol=2e-6)
    for copy, parameter in zip(copies[1:], fused[1:], strict=True):
        alive = torch.tensor([0, 2])  # the copy of a dead member stays as it was, like its parameter
        torch.testing.assert_close(copy[alive].float(), parameter[alive], rtol=2**-7, atol=0.0)  # bfloat16


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_torchs_kernel_moves_a_single_run_alike(weight_decay):
    start = [gradient.float() for gradient in gradients_at(1000, count=1)]
    plain, by_torch = (
        StackedAdam([p.clone() for p in start], torch.tensor([1e-2]), weight_decay=weight_decay) for _ in range(2)
    )
    by_torch.by_torch = True
    for step in range(8):
        gradients = [gradient.float() for gradient in gradients_at(step, count=1)]
        alive = torch.tensor([step != 5])
        if step == 5:
            gradients[0].fill_(math.nan)
        share = torch.tensor(1 - step / 10, dtype=torch.float64)
        plain.step(gradients, alive, share)
        by_torch.step(gradients, alive, share)
    for name, expected in plain.tensors().items():
        torch.testing.assert_close(by_torch.tensors()[name], expected)
    torch.testing.assert_close(by_torch.parameters, plain.parameters)
