"""Every experiment of every paper at scale smoke: what it writes, and that it trains nothing twice.

A class per paper, which pytest-xdist keeps in one process: its experiments share the sweeps that one of them trains.
"""

import csv
import inspect
import json
import sys

import pytest
import torch

from tests.support.messages import names
from unbraid.experiments import experiment, reproduce, running
from unbraid.experiments.running import AS_LARGE_AS, REFINES
from unbraid.sweeps import worker
from unbraid.sweeps.expand import build_configs, read_axes
from unbraid.sweeps.plan import SweepPlan
from unbraid.sweeps.sources import Sources

pytestmark = pytest.mark.usefixtures("coarse_figures")
FILES = {"README.md", "figure.png", "table.csv", "table.md", "verdicts.json"}


@pytest.fixture(scope="class")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduced")


def smoke(name, place):
    (outcome,) = reproduce(name, scale="smoke", root=place / "runs", out=place / "results", device="cpu")
    return outcome


def check_smoke(name, place):
    first = smoke(name, place)
    assert first.folder == place / "results" / name
    assert {path.name for path in first.folder.iterdir()} == FILES
    assert (first.folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    facts = experiment[name].facts
    assert [v.claim for v in first.verdicts] == [claim.text for claim in facts.claims]
    assert all(v.verdict == "inconclusive" and names(v.why, "smoke") for v in first.verdicts)
    stored = json.loads((first.folder / "verdicts.json").read_text())
    assert stored["verdicts"] == [v.as_record() for v in first.verdicts]
    assert stored["command"] == f"unbraid reproduce {name} --scale smoke --device cpu"
    assert stored["commit"]
    assert stored["versions"]["torch"]
    with (first.folder / "table.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert set(facts.series) <= {row["series"] for row in rows}
    page = (first.folder / "README.md").read_text()
    assert (first.folder / "table.md").read_text() in page


def check_reuse(name, place, monkeypatch):
    stored = json.loads((smoke(name, place).folder / "verdicts.json").read_text())
    monkeypatch.setattr(worker, "train_group", lambda *given: pytest.fail("a finished run is trained again"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # the figure has been drawn once
    again = smoke(name, place)
    assert again.trained == 0
    assert [v.as_record() for v in again.verdicts] == stored["verdicts"]


class Smoke:
    paper: str

    def test_it_writes_everything(self, name, place):
        check_smoke(name, place)

    def test_it_reuses_its_runs(self, finished, place, monkeypatch):
        check_reuse(finished, place, monkeypatch)


class TestChen2018(Smoke):
    paper = "chen2018"


class TestDaunhawer2019(Smoke):
    paper = "daunhawer2019"


class TestEsmaeili2018(Smoke):
    paper = "esmaeili2018"


class TestMsvae2020(Smoke):
    paper = "msvae2020"


class TestSplit2020(Smoke):
    paper = "split2020"


def pytest_generate_tests(metafunc):
    if metafunc.cls is None:
        return
    own = [name for name in experiment if name.startswith(f"{metafunc.cls.paper}/")]
    if "name" in metafunc.fixturenames:
        # fig4-norb is fig4 on other data
        first = {find_drawing(name): name for name in reversed(own) if "-" not in name}
        metafunc.parametrize("name", mark_slow({name: name in first.values() for name in own}))
    else:
        metafunc.parametrize("finished", mark_slow({name: name == own[0] for name in own}))


def find_drawing(name):
    """Return the code that draws a figure, which several experiments of a paper may share."""
    figure = inspect.unwrap(experiment[name].make)
    return inspect.unwrap(inspect.getclosurevars(figure).nonlocals.get("draw", figure)).__code__


def test_the_settings_of_every_experiment_are_those_of_its_recipes():
    """Also of an experiment that is slow, since another one of its paper is drawn by the same code."""
    sources = Sources(torch.device("cpu"))
    for name in experiment:
        for series in experiment[name].facts.build_sweeps("smoke").values():
            if not {REFINES, AS_LARGE_AS} & series.keys():
                settings, _ = running._choose_data(series)
                recipe, data = settings.pop("recipe"), settings.pop("data", "sprites")
                plan = SweepPlan(read_axes(recipe, data, None, settings, sources), ())
                assert build_configs(plan, sources), name


def mark_slow(quick):
    return [name if fast else pytest.param(name, marks=pytest.mark.slow) for name, fast in quick.items()]


def test_every_paper_has_its_class():
    assert {each.paper for each in Smoke.__subclasses__()} == {name.partition("/")[0] for name in experiment}
