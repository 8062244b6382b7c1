"""Comparisons of settings: runs of different settings are never taken for seeds."""

import itertools
import json

import pytest

from tests.support.command import unbraid
from tests.support.messages import names, naming
from tests.support.sweeps import sweep
from unbraid.config import parse_pairs
from unbraid.errors import UsageError
from unbraid.metrics import Score
from unbraid.report.tables import Member
from unbraid.sweeps.results import Sweep


class KnownSweep(Sweep):
    """A sweep whose mig is beta / 100 + 10 lr + seed / 1000, less one for beta-tcvae, without files."""

    def __init__(self, path, missing=(), **axes):
        self.notes, self._path, self._members = [], path, []
        for values in itertools.product(*axes.values()):
            settings = dict(zip(axes, values, strict=True))
            mig = settings["beta"] / 100 + 10 * settings.get("lr", 0) + settings["seed"] / 1000
            mig -= settings.get("recipe") == "beta-tcvae"
            state = "diverged" if any(part.items() <= settings.items() for part in missing) else "finished"
            scores = {"mig/exact": Score("mig", "exact", mig, 10)}
            self._members.append(Member(f"run-{len(self._members)}", settings, state, "", scores))

    def __len__(self):
        return len(self._members)

    @property
    def path(self):
        return self._path

    @property
    def members(self):
        return self._members


@pytest.fixture
def grid(tmp_path):
    return KnownSweep(tmp_path / "grid", beta=[1, 10], lr=[0.001, 0.005], seed=[0, 1])


def test_each_value_of_another_axis_is_compared_with_its_own_seeds(grid):
    found = grid.compare({"beta": 1}, {"beta": 10})
    assert [each.settings for each in found] == [{"lr": 0.001}, {"lr": 0.005}]
    for each in found:
        assert each.over == "2 and 2 seeds"
        assert each.difference == pytest.approx(0.09)
        assert each.interval[1] - each.interval[0] < 0.01  # the effect of lr, 0.04, is no spread over seeds
    assert not grid.notes


def test_recipes_are_no_seeds(tmp_path):
    recipes = KnownSweep(tmp_path, recipe=["beta-vae", "beta-tcvae"], beta=[1, 10], seed=[0, 1])
    found = recipes.compare({"beta": 1}, {"beta": 10})
    assert [(each.settings["recipe"], each.over) for each in found] == [
        ("beta-vae", "2 and 2 seeds"),
        ("beta-tcvae", "2 and 2 seeds"),
    ]
    (found,) = recipes.compare({"recipe": "beta-vae", "beta": 1}, {"recipe": "beta-tcvae", "beta": 10})
    assert found.settings == {}
    assert found.difference == pytest.approx(-0.91)


def test_values_that_one_side_lacks_are_noted(tmp_path):
    grid = KnownSweep(tmp_path, missing=[{"beta": 10, "lr": 0.005}], beta=[1, 10], lr=[0.001, 0.005], seed=[0, 1])
    (found,) = grid.compare({"beta": 1}, {"beta": 10})
    assert found.settings == {"lr": 0.001}
    assert names(grid.notes[0], "beta=1", "lr=0.005")


def test_a_command_chooses_values_where_both_sides_share_none(tmp_path):
    lacking = [{"beta": 10, "lr": 0.005}, {"beta": 1, "lr": 0.001}]
    grid = KnownSweep(tmp_path, missing=lacking, beta=[1, 10], lr=[0.001, 0.005], seed=[0, 1])
    command = f"unbraid compare {tmp_path} beta=1,lr=0.005 beta=10,lr=0.001"
    with pytest.raises(UsageError, match=naming("lr", command)):
        grid.compare({"beta": 1}, {"beta": 10})
    (found,) = grid.compare({"beta": 1, "lr": 0.005}, {"beta": 10, "lr": 0.001})
    assert found.difference == pytest.approx(0.05)


def test_two_sweeps_are_compared_where_both_have_the_same_values(grid, tmp_path):
    other = KnownSweep(tmp_path / "other", beta=[1, 4], lr=[0.001], seed=[0, 1, 2])
    (found,) = grid.compare({}, {}, other=other)
    assert found.settings == {"beta": 1, "lr": 0.001}
    assert found.over == "2 and 3 seeds"
    assert len(grid.notes) == 2
    one, two = (KnownSweep(tmp_path / str(beta), beta=[beta], seed=[0, 1]) for beta in (1, 10))
    (found,) = one.compare({}, {}, other=two)
    assert found.difference == pytest.approx(0.09)
    with pytest.raises(UsageError, match=naming("lr", "beta=10,lr=0.001", "beta=10")):
        grid.compare({"beta": 10}, {}, other=two)


def test_an_empty_second_sweep_is_not_mistaken_for_the_first(grid, tmp_path):
    with pytest.raises(UsageError, match=naming("No finished run", "beta=10")):
        grid.compare({"beta": 1}, {"beta": 10}, other=KnownSweep(tmp_path / "empty", beta=[], seed=[]))


def test_seeds_are_not_compared_over_seeds(grid):
    for held in ({}, {"beta": 1}, {"beta": 1, "lr": 0.001}):
        with pytest.raises(UsageError, match=naming("only", "seed", "nothing to compare")):
            grid.compare({**held, "seed": 0}, {**held, "seed": 1})
    (found,) = grid.compare({"beta": 1, "lr": 0.001, "seed": 0}, {"beta": 10, "lr": 0.001, "seed": 0})
    assert (found.interval, found.over) == (None, "1 and 1 seeds")


def test_sides_with_common_runs_are_refused(grid):
    for first, second in (({"beta": 1}, {"lr": 0.001}), ({"beta": 1}, {"beta": 1}), ({}, {})):
        with pytest.raises(UsageError, match=naming("in common")):
            grid.compare(first, second)


def test_a_score_that_one_side_lacks_somewhere_is_noted(grid):
    for member in grid.members:
        if member.settings["beta"] == 10 and member.settings["lr"] == 0.005:
            member.scores.clear()
    (found,) = grid.compare({"beta": 1}, {"beta": 10})
    assert found.settings == {"lr": 0.001}
    assert names(grid.notes[0], "mig/exact", "lr=0.005")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("beta=1", {"beta": 1}),
        ("beta=1,lr=5e-3", {"beta": 1, "lr": 0.005}),
        ("recipe=beta-vae, beta-tcvae.beta=none", {"recipe": "beta-vae", "beta-tcvae.beta": None}),
        ("encoder.hidden=[16,16],z=3", {"encoder.hidden": (16, 16), "z": 3}),
        ("split=posX:0,1,beta=1", {"split": "posX:0,1", "beta": 1}),
    ],
)
def test_a_setting_may_name_several_axes(text, settings):
    assert parse_pairs(text) == settings


def test_the_command_prints_a_row_for_each_value_of_other_axes(tmp_path):
    path = sweep(tmp_path, lr=[1e-3, 5e-3]).path
    records = json.loads(unbraid("compare", path, "beta=1", "beta=4", "--json"))
    assert [each["settings"] for each in records] == [{"lr": 0.001}, {"lr": 0.005}]
    assert {each["over"] for each in records} == {"2 and 2 seeds"}
    table = unbraid("compare", path, "beta=1", "beta=4").splitlines()
    assert [line.split()[0] for line in table] == ["lr", "0.001", "0.005"]
    (held,) = json.loads(unbraid("compare", path, "beta=1,lr=5e-3", "beta=4,lr=5e-3", "--json"))
    assert held == {**records[1], "settings": {}}
    other = sweep(tmp_path, name="two", beta=[2]).path
    (found,) = json.loads(unbraid("compare", path, other, "beta=1,lr=5e-3", "beta=2", "--json"))
    assert found["first"] == held["first"]
    assert names(unbraid("compare", path, "seed=0", "seed=1", code=2), "only", "seed")
