"""MIG of the posteriors themselves, by quadrature: against closed forms and an adaptive rule, and in any pieces."""

import numpy as np
import pytest
import torch

from tests.support.evaluations import (
    SPRITES,
    aligned_encoder,
    full_grid,
    mixed_data,
    slow_entropy,
    slow_exact_information,
    slow_gap,
)
from unbraid.metrics import mig_exact
from unbraid.metrics.information import quadrature
from unbraid.metrics.information.quadrature import integrate_information


def test_exact_agrees_with_adaptive_quadrature():
    rng = np.random.default_rng(5)
    rows = 24
    factors = np.stack([rng.integers(0, 2, rows), rng.integers(0, 3, rows)], axis=1)
    means = rng.standard_normal((rows, 3)) + factors[:, [0, 1, 1]]
    stds = np.exp(rng.uniform(np.log(0.03), np.log(1.5), (rows, 3)))
    expected = [[slow_exact_information(m, s, f) for f in factors.T] for m, s in zip(means.T, stds.T, strict=True)]
    score = mig_exact(means, stds, factors)
    found = np.array(list(score.details["information"].values())).T
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert score.value == pytest.approx(slow_gap(expected, [slow_entropy(f.tolist()) for f in factors.T]), abs=1e-6)
    assert all(0 < score.details["spacing"][f"z{j}"] <= stds[:, j].min() / 2 for j in range(3))


def test_exact_of_one_component_per_class_is_the_closed_form():
    """Far apart, a class is known exactly; on top of each other, nothing is."""
    factors = np.repeat([0, 1], 8)
    apart = np.where(factors, 100.0, -100.0)
    score = mig_exact(np.stack([apart, 0 * apart], 1), np.ones((16, 2)), factors)
    np.testing.assert_allclose(score.details["information"]["v0"], [np.log(2), 0], atol=1e-7)


def test_merging_equal_rows_changes_nothing():
    grid = full_grid((3, 4, 5))
    means, stds = aligned_encoder(np.tile(grid, (20, 1)), 0.2)
    factors = np.tile(grid, (20, 1))
    jitter = 1e-9 * np.random.default_rng(0).standard_normal(means.shape)
    merged, apart = mig_exact(means, stds, factors), mig_exact(means + jitter, stds, factors)
    for name, values in merged.details["information"].items():
        np.testing.assert_allclose(values, apart.details["information"][name], atol=1e-6)


def test_exact_in_pieces_is_the_same(monkeypatch):
    codes, factors = mixed_data(60)
    stds = np.full_like(codes, 0.2)
    whole = mig_exact(codes, stds, factors)
    monkeypatch.setattr("unbraid.metrics.information.quadrature.MAX_DENSITY_VALUES", 1)
    monkeypatch.setattr("unbraid.metrics.information.quadrature.MAX_SCATTERED_VALUES", 100)
    for name, values in mig_exact(codes, stds, factors).details["information"].items():
        np.testing.assert_allclose(values, whole.details["information"][name], atol=1e-12)


def test_exact_bears_very_different_widths():
    rng = np.random.default_rng(0)
    factors = rng.integers(0, 4, 150)
    means = np.stack([factors + 0.1 * rng.random(150), rng.random(150)], axis=1)
    stds = np.exp(rng.uniform(np.log(1e-4), 0, means.shape))
    information = mig_exact(means, stds, factors).details["information"]["v0"]
    assert np.log(4) > information[0] > information[1] > 0


def test_unequal_factor_values_are_weighted():
    """q(v) is the share of rows, not uniform."""
    factors = np.array([0] * 30 + [1] * 10)
    means = np.stack([50.0 * factors, np.zeros(40)], axis=1)
    score = mig_exact(means, np.ones_like(means), factors)
    assert score.details["entropy"]["v0"] == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    assert score.value == pytest.approx(1, abs=1e-7)


@pytest.mark.gpu
def test_exact_is_the_same_on_cuda():
    rng = np.random.default_rng(0)
    grid = full_grid(SPRITES.values())
    means, stds = aligned_encoder(grid, 0.05)
    means = torch.as_tensor(means + 0.01 * rng.standard_normal(means.shape))  # no two rows are equal
    stds = torch.as_tensor(stds * np.exp(0.5 * rng.standard_normal(stds.shape)))
    on_gpu = mig_exact(means.cuda(), stds.cuda(), grid)
    some = slice(0, None, 101)
    here, there = (mig_exact(means[some].to(d), stds[some].to(d), grid[some]) for d in ("cpu", "cuda"))
    assert here.value == pytest.approx(there.value, abs=1e-6)
    assert 0.7 < on_gpu.value < 1


@pytest.mark.parametrize("first", [0, 2])
def test_components_are_laid_down_alike_by_scattering_and_by_products(first):
    """A GPU multiplies where a CPU scatters; the densities are the same."""
    generator = torch.Generator().manual_seed(0)
    mean, std = 3 * torch.randn(5000, generator=generator), 0.02 * (1 + 0.9 * torch.rand(5000, generator=generator))
    classes = torch.stack([torch.arange(5000) % 3, 3 + torch.arange(5000) % 4], dim=1)
    mixture = quadrature.PosteriorMixture(mean, std, torch.ones(5000, dtype=torch.float64), classes)
    grid = quadrature.QuadratureGrid.over("z", mean, std)
    placed = quadrature.PlacedComponents.on(grid, grid.spacing, mixture)
    inside = (classes >= first) & (classes < first + 4)
    target = torch.where(inside, classes - first, 4)
    made = [torch.zeros(4, grid.points, dtype=torch.float64) for _ in range(2)]
    quadrature._add_by_scattering(made[0], placed, target)
    quadrature._add_by_products(made[1], placed, target)
    assert float(made[0].sum()) > 0
    torch.testing.assert_close(made[1], made[0], rtol=1e-6, atol=1e-6 * float(made[0].max()))


def test_the_thread_count_is_put_back():
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError):
        integrate_information(torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(4, 1).long(), (2,), ("z",))
    assert torch.get_num_threads() == before
