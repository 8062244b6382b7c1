"""The pendulum against scipy's solver and two closed forms; its three stages; factors as numbers."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import ellipj

from tests.support.messages import naming
from unbraid.data import factor_numbers, load
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.pendulum import Pendulum, swing
from unbraid.errors import DataError, UsageError

TIMES = np.arange(101) * 0.1
SMALL = {"lengths": 3, "dampings": 4, "masses": 2}


def one(length, damping, mass, **settings):
    return swing(Pendulum(*(np.array([float(v)]) for v in (length, damping, mass))), **settings)[0]


@pytest.mark.parametrize("given", [(1, 0.1, 2), (3, 0.1, 2), (1, 2, 0.1), (3, 2, 0.1), (2, 1, 1)])
def test_the_equation_of_motion(given):
    length, damping, mass = given

    def change(_, state):
        return [state[1], -damping / mass * state[1] - 9.8 / length * np.sin(state[0])]

    solved = solve_ivp(change, [0, 10], [0, 3], t_eval=TIMES, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(one(*given), solved.y[0], atol=2e-6)


def test_small_angles_swing_as_a_damped_oscillator():
    rate, length, speed = 0.3, 1.7, 1e-4
    turn = np.sqrt(9.8 / length - rate**2 / 4)
    expected = speed / turn * np.exp(-rate / 2 * TIMES) * np.sin(turn * TIMES)
    np.testing.assert_allclose(one(length, rate * 1.3, 1.3, speed=speed), expected, atol=2e-9)


def test_without_damping_large_angles_are_an_elliptic_function():
    for length in (1.0, 3.0):
        turn = np.sqrt(9.8 / length)
        modulus = 3 / (2 * turn)
        sine = ellipj(turn * TIMES, modulus**2)[0]
        np.testing.assert_allclose(one(length, 0, 1), 2 * np.arcsin(modulus * sine), atol=1e-6)


def test_the_grid_and_its_stages():
    data = load("pendulum", SMALL)
    assert data.is_grid
    assert (len(data), data.shape, data.factor_names) == (24, (101,), ("length", "damping", "mass"))
    assert [factor.values for factor in data.factors][::2] == [(1.0, 2.0, 3.0), (0.1, 2.0)]
    rows = torch.arange(len(data))
    numbers = factor_numbers(data, rows)
    assert numbers[0].tolist() == pytest.approx([1.0, 0.1, 0.1])
    assert numbers[-1].tolist() == pytest.approx([3.0, 2.0, 2.0])
    for row in (0, 13, 23):
        own = numbers[row].double().numpy()
        np.testing.assert_allclose(data.images(rows[row]).numpy(), one(*own), atol=1e-5)
    unit, free = (load("pendulum", {**SMALL, "observed": kind}).images(rows) for kind in ("unit-mass", "undamped"))
    assert torch.equal(unit[::2], unit[1::2])  # mass, the last factor, makes no difference
    assert torch.equal(free[:8], free[:1].expand(8, -1))  # only length does
    np.testing.assert_allclose(unit[2].numpy(), one(1.0, numbers[2, 1].item(), 1), atol=1e-5)
    np.testing.assert_allclose(free[9].numpy(), one(2.0, 0, 1), atol=1e-5)


def test_rows_that_are_drawn_are_the_same_for_every_stage_and_their_last_tenth_is_held_out():
    settings = {**SMALL, "rows": 50, "seed": 3}
    data, unit = load("pendulum", settings), load("pendulum", {**settings, "observed": "unit-mass"})
    assert torch.equal(data.table, unit.table)
    assert data.held_out.tolist() == [45, 46, 47, 48, 49]
    assert not torch.equal(data.table, load("pendulum", {**settings, "seed": 4}).table)
    numbers = factor_numbers(data, torch.tensor([7])).double().numpy()[0]
    np.testing.assert_allclose(data.images(torch.tensor([7])).numpy()[0], one(*numbers), atol=1e-5)
    many = load("pendulum", {**SMALL, "rows": 4000})
    shares = [torch.bincount(many.table[:, k], minlength=s) / 4000 * s for k, s in enumerate(many.sizes)]
    assert all(bool(((share - 1).abs() < 0.15).all()) for share in shares)


def test_what_cannot_be_a_pendulum_or_a_number_is_one_sentence():
    with pytest.raises(UsageError, match=naming("damping", 2, 1)):
        load("pendulum", {"dampings": 1})
    with pytest.raises(UsageError, match=naming("rows", 10, 3)):
        load("pendulum", {"rows": 3})
    with pytest.raises(UsageError, match=naming("length", "mass", 0)):
        one(0, 1, 1)
    words = FactorDataset("made", Pixels(torch.zeros(2, 1), (1,)), (Factor("kind", 2, ("a", "b")),))
    with pytest.raises(DataError, match="kind"):
        factor_numbers(words, torch.arange(2))
    table = torch.tensor([[1], [-1]])
    known = FactorDataset("made", Pixels(torch.zeros(2, 1), (1,)), (Factor("size", 2, (0.5, 2.0)),), table)
    found = factor_numbers(known, torch.arange(2))[:, 0]
    assert found[0] == 2
    assert bool(found[1].isnan())
