"""Every experiment of every paper at scale smoke: what it writes, and that it trains nothing twice.

A class per paper, which pytest-xdist keeps in one process: its experiments share the sweeps that one of them trains.
"""

import csv
import json
import sys

import numpy as np
import pytest

from tests.support.messages import names
from unbraid.experiments import experiment, reproduce
from unbraid.sweeps import worker

pytestmark = pytest.mark.usefixtures("coarse_figures")
FILES = {"README.md", "figure.png", "runs.csv", "table.csv", "table.md", "verdicts.json"}


@pytest.fixture(scope="class")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduced")


def smoke(name, place):
    (outcome,) = reproduce(name, scale="smoke", root=place / "runs", out=place / "results", device="cpu")
    return outcome


def read_csv(path):
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


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
    by_classifier = {score for score in facts.scores if score.startswith(("frechet/classifier", "kept/classifier"))}
    assert by_classifier <= stored.get("networks", {}).keys()
    rows, runs = read_csv(first.folder / "table.csv"), read_csv(first.folder / "runs.csv")
    assert set(facts.series) <= {row["series"] for row in rows}
    for row in (row for row in rows if row["runs"]):
        own = [run for run in runs if all(run[key] == row[key] for key in run.keys() & row.keys() - {*facts.scores})]
        for score in (score for score in facts.scores if row[score]):
            values = [float(run[score]) for run in own if run[score]]
            assert float(row[score]) == pytest.approx(np.mean(values), abs=1e-9)
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
    if "name" in metafunc.fixturenames:  # fig4-norb is fig4 on other data
        metafunc.parametrize("name", mark_slow({name: "-" not in name for name in own}))
    else:
        metafunc.parametrize("finished", mark_slow({name: name == own[0] for name in own}))


def mark_slow(quick):
    return [name if fast else pytest.param(name, marks=pytest.mark.slow) for name, fast in quick.items()]


def test_every_paper_has_its_class():
    assert {each.paper for each in Smoke.__subclasses__()} == {name.partition("/")[0] for name in experiment}
