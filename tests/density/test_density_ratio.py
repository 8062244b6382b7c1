"""Density ratios against Gaussians whose total correlation is known."""

import numpy as np
import pytest
import torch

from tests.support.gaussians import correlated, truth
from tests.support.messages import naming
from unbraid.density.density_ratio import (
    Discriminator,
    estimate_log_ratios,
    measure_overconfidence,
    number_groups,
    one_cycle_rates,
    shuffle_groups,
)
from unbraid.errors import DataError, UsageError

SMALL = {"width": 64, "depth": 2, "steps": 300, "lr": 3e-3}


@pytest.mark.parametrize(("rho", "expected"), [(0.0, 0.0), (0.6, 1.116)])
def test_a_small_discriminator_comes_near_the_truth(rho, expected):
    assert truth(rho) == pytest.approx(expected, abs=1e-3)
    found = float(estimate_log_ratios(correlated(8_000, rho), **SMALL).mean())
    assert found == pytest.approx(expected, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "expected", "near"), [(0.3, 0.24, 0.04), (0.6, 1.12, 0.08), (0.9, 4.15, 0.3)])
def test_the_network_of_table_3_estimates_gaussians(rho, expected, near):
    """tests/oracles.md, row 5: .24 / 1.12 / 4.15; a good density-ratio estimate gives .23 / 1.08 / 4.14."""
    assert truth(rho) == pytest.approx(expected, abs=0.005)
    assert float(estimate_log_ratios(correlated(20_000, rho), steps=800).mean()) == pytest.approx(expected, abs=near)


@pytest.mark.slow
def test_a_large_total_correlation_is_underestimated():
    """tests/oracles.md, row 5: at D = 100 and rho = .9 the truth is 41.52, and ratio estimates fall near 23."""
    found = float(estimate_log_ratios(correlated(20_000, 0.9, 100), steps=400, width=256).mean())
    assert truth(0.9, 100) == pytest.approx(41.52, abs=0.01)
    assert 10 < found < 35


@pytest.mark.parametrize("rows", [120, 600])
@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_rows_that_the_network_learns_by_heart_are_refused(rows, rho):
    """The mean log ratio would be -5 to -30 here, and the truth is 0 and 1.12."""
    with pytest.raises(DataError, match=naming("rows", f"{rows * 4 // 5}", "too few")):
        estimate_log_ratios(correlated(rows, rho), width=128, steps=300)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.9])
def test_5000_rows_are_within_the_stated_error(rho):
    """docs/scores.md: too low by up to .1 nats and a sixth."""
    found = float(estimate_log_ratios(correlated(5_000, rho, seed=20), width=256).mean())
    assert truth(rho) * 5 / 6 - 0.1 <= found <= truth(rho) + 0.1


def test_overconfidence_is_0_for_true_log_ratios_and_grows_with_their_size():
    """Two Normals at -1 and 1 have the log ratio 2x."""
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    joint, shuffled = 2 * (x + 1), 2 * (x - 1)
    assert measure_overconfidence(joint, shuffled) < 1e-3
    assert measure_overconfidence(0.5 * joint, 0.5 * shuffled) == 0  # too unsure is no fault here
    assert measure_overconfidence(10 * joint, 10 * shuffled) > 0.3
    assert measure_overconfidence(-joint, -shuffled) > 1


def test_groups_are_kept_together():
    """Two groups, each full of correlation inside and independent of each other, have none between them."""
    codes = correlated(8_000, 0.9, 4)
    apart = float(estimate_log_ratios(codes, [[0, 1], [2, 3]], **SMALL).mean())
    across = float(estimate_log_ratios(codes, [[0, 2], [1, 3]], **SMALL).mean())
    assert apart == pytest.approx(0, abs=0.1)
    assert across == pytest.approx(truth(0.9, 4), abs=0.3)


def test_shuffled_codes_have_the_marginals_of_groups():
    codes = torch.arange(50)[:, None].repeat(1, 3).float()
    rows = torch.randint(50, (2, 4_000), generator=torch.Generator().manual_seed(0))
    made = shuffle_groups(codes, number_groups([[0, 2], [1]]), rows)
    assert torch.equal(made[:, 0], made[:, 2])
    assert abs(float(np.corrcoef(made[:, :2].T)[0, 1])) < 0.06
    assert set(made[:, 1].tolist()) == set(range(50))


def test_the_discriminator_is_that_of_table_3():
    sizes = [tuple(p.shape) for p in Discriminator(10).parameters() if p.ndim == 2]
    assert sizes == [(1000, 10), *[(1000, 1000)] * 4, (2, 1000)]


def test_the_same_seed_gives_the_same_ratios_and_leaves_the_global_generator_alone():
    codes, state = correlated(2_000, 0.5), torch.get_rng_state()
    first, second = (estimate_log_ratios(codes, width=8, depth=1, steps=50) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, estimate_log_ratios(codes, width=8, depth=1, steps=50, seed=1))


@pytest.fixture
def default_of_float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_of_float64")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ratios_do_not_depend_on_torchs_default_precision(dtype):
    codes = correlated(8_000, 0.9, 2).to(dtype)
    found = estimate_log_ratios(codes, width=16, depth=2, steps=200, lr=1e-2)
    assert found.dtype == torch.float32
    assert float(found.mean()) == pytest.approx(truth(0.9, 2), abs=0.2)


def test_constant_columns_depend_on_nothing():
    codes = correlated(4_000, 0.6, 4)
    codes[:, 2:] = 3.0
    assert float(estimate_log_ratios(codes, **SMALL).mean()) == pytest.approx(truth(0.6, 2), abs=0.1)


def test_bad_input_is_refused():
    with pytest.raises(UsageError, match=naming("groups", 3)):
        estimate_log_ratios(torch.zeros(10, 3), [[0], [1]])
    with pytest.raises(UsageError, match=naming("groups", 2)):
        estimate_log_ratios(torch.zeros(10, 2), [[0, 1]])
    with pytest.raises(DataError, match=naming("rows", 8)):
        estimate_log_ratios(torch.zeros(3, 2))


@pytest.mark.parametrize("steps", [20, 45, 500])
def test_rates_are_those_of_torchs_one_cycle(steps):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    wanted = []
    for _ in range(steps):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    made = one_cycle_rates(2e-3, steps).tolist()
    assert made == pytest.approx(wanted, rel=1e-6)
