"""Small descents: torch's Adam, step by step, and on CUDA the same from a recording."""

import pytest
import torch

from unbraid.density.small_fit import descend

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


@pytest.mark.parametrize("device", DEVICES)
def test_it_takes_the_steps_of_adam(device):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 8, 3, generator=generator).to(device), torch.randn(12, 8, generator=generator).to(device)
    rates = 0.1 * (1 - torch.arange(12) / 12)
    ours, theirs = (torch.ones(3, device=device, requires_grad=True) for _ in range(2))
    descend("fit", [ours], lambda n: (x.index_select(0, n)[0] @ ours - y.index_select(0, n)[0]).square().mean(), rates)
    optimizer = torch.optim.Adam([theirs], lr=0.1)
    for step, rate in enumerate(rates.tolist()):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        (x[step] @ theirs - y[step]).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
