"""The kernels of the Bernoulli log likelihood, against torch's cross-entropy in float64."""

import importlib

import pytest
import torch
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def kernel(monkeypatch):
    """The module with small blocks, so that a row has several, and several products."""
    pytest.importorskip("triton")
    kernel = importlib.import_module("unbraid.networks.bernoulli_kernel")
    monkeypatch.setattr(kernel, "_BLOCK", 16)
    monkeypatch.setattr(kernel, "_SUMMED", 16)
    return kernel


def expected(logits: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return -F.binary_cross_entropy_with_logits(logits.double(), x.double(), reduction="none").sum(-1)


@pytest.mark.parametrize("multiplies", [True, False])
@pytest.mark.parametrize("width", [1, 16, 37, 64 * 16, 2 * 64 * 16 + 5])
def test_values_and_gradients(kernel, monkeypatch, width, multiplies):
    monkeypatch.setattr(kernel, "MULTIPLIES", multiplies)
    torch.manual_seed(0)
    logits = (3 * torch.randn(3, width, device=DEVICE)).requires_grad_()
    x, slopes = torch.rand(3, width, device=DEVICE), torch.randn(3, device=DEVICE)
    made, wanted = kernel.bernoulli_log_prob(logits, x), expected(logits, x)
    torch.testing.assert_close(made.double(), wanted, rtol=1e-6, atol=1e-4)
    gradients = (torch.autograd.grad((each * slopes).sum(), logits)[0] for each in (made, wanted))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("logit", [0.0, 1e-8, -1e-8, 80.0, -80.0, 3e4])
def test_no_product_overflows_and_large_logits_are_exact(kernel, logit):
    """Products of 64 numbers are largest where all logits are 0."""
    logits = torch.full((1, 300 * 16), logit, device=DEVICE)
    for pixel in (0.0, 1.0):
        x = torch.full_like(logits, pixel)
        torch.testing.assert_close(
            kernel.bernoulli_log_prob(logits, x).double(), expected(logits, x), rtol=1e-6, atol=1e-9
        )


def test_second_derivatives(kernel):
    logits, x = torch.randn(2, 20, device=DEVICE, requires_grad=True), torch.rand(2, 20, device=DEVICE)

    def penalty(log_prob) -> torch.Tensor:
        slope = torch.autograd.grad(log_prob(logits, x).square().sum(), logits, create_graph=True)[0]
        return torch.autograd.grad(slope.square().sum(), logits)[0]

    torch.testing.assert_close(penalty(kernel.bernoulli_log_prob), penalty(expected), rtol=1e-4, atol=1e-3)
