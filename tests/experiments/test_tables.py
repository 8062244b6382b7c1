"""The table of an experiment."""

import pytest

from tests.support.results import member
from unbraid.experiments import Results
from unbraid.experiments.base import Experiment
from unbraid.experiments.writing import build_table

MIG = "mig/exact"


@pytest.mark.parametrize("refines", [True, False])
def test_a_stage_is_compared_with_the_very_runs_that_it_refines(refines):
    """Stages keep the MIG of their runs; other runs of the first series may have further seeds."""
    of_seed = {0: 0.1, 1: 0.4, 2: 0.7, 3: 0.9, 4: 0.9}
    runs = [member("vae", seed, {MIG: mig}) for seed, mig in of_seed.items()]
    stages = [member("sharper", seed, {MIG: of_seed[seed] + 0.01}) for seed in (2, 0, 1)]
    series = {"vae": {"recipe": "vae"}, "sharper": {"recipe": "ms-vae"} | ({"refines": "vae"} if refines else {})}
    facts = Experiment(series=series, scores=(MIG,), contrast=("vae", "sharper"))
    row = build_table(facts, Results((*runs, *stages)))[-1]
    assert row["series"] == "sharper minus vae"
    assert row[MIG].value == pytest.approx(0.01 if refines else 0.41 - 0.6)
    assert (row[MIG].high - row[MIG].low < 1e-9) == refines
