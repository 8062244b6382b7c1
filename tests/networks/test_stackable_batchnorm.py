"""A BatchNorm that can be stacked is torch's own."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from unbraid.networks.stackable_batchnorm import make_stackable

INPUTS = {nn.BatchNorm1d: (6, 3), nn.BatchNorm2d: (6, 3, 4, 5), nn.BatchNorm3d: (6, 3, 2, 4, 5)}
OPTIONS = [{}, {"affine": False}, {"track_running_stats": False}]


def layer(kind, **options):
    torch.manual_seed(0)
    made = kind(3, momentum=0.3, **options)
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", INPUTS)
def test_it_computes_and_remembers_what_torch_does(kind, options):
    plain, made = layer(kind, **options), make_stackable(layer(kind, **options))
    x = torch.randn(2, *INPUTS[kind])
    for training in (True, False):
        plain.train(training), made.train(training)
        for batch in x:
            mine, theirs = batch.clone().requires_grad_(), batch.clone().requires_grad_()
            torch.testing.assert_close(made(mine), plain(theirs), rtol=0, atol=0)
            made(mine).pow(3).sum().backward(), plain(theirs).pow(3).sum().backward()
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0)
    torch.testing.assert_close(dict(made.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_under_autocast_members_keep_their_statistics_in_full_precision(device):
    several = [make_stackable(layer(nn.BatchNorm2d)).to(device) for _ in range(2)]
    alone = layer(nn.BatchNorm2d).to(device)
    state = stack_module_state(several)
    x = torch.randn(6, 3, 4, 5, device=device).bfloat16()
    with torch.autocast(device, torch.bfloat16):
        found = vmap(lambda state, x: functional_call(several[0], state, (x,)), in_dims=(0, None))(
            {**state[0], **state[1]}, x
        )
        expected = alone(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected.expand_as(found))
    torch.testing.assert_close(state[1]["running_mean"][1], alone.running_mean)


@pytest.mark.parametrize("device", DEVICES)
def test_stacked_layers_are_single_ones(device):
    several = [make_stackable(layer(nn.BatchNorm2d)).to(device) for _ in range(2)]
    nn.init.normal_(several[1].weight)
    alone = copy.deepcopy(several)
    state = stack_module_state(several)
    x = torch.randn(2, 6, 3, 4, 5, device=device).to(memory_format=torch.channels_last_3d)
    found = vmap(lambda state, x: functional_call(several[0], state, (x,)))({**state[0], **state[1]}, x)
    expected = torch.stack([one(part) for one, part in zip(alone, x, strict=True)])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(state[1]["running_var"], torch.stack([one.running_var for one in alone]))


def test_what_no_stack_can_hold_stays():
    class Own(nn.BatchNorm2d): ...

    kept = nn.Sequential(Own(3), nn.BatchNorm2d(3, momentum=None), nn.Conv2d(3, 3, 1))
    kinds = [type(part) for part in kept]
    assert [type(part) for part in make_stackable(kept)] == kinds
