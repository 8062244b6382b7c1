"""What scores and sweeps show in a notebook."""

import sys

import pytest

from tests.support.messages import naming
from unbraid import Score, Sweep
from unbraid.errors import MissingExtraError


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (Score("mig", "exact", 0.8149, 10_000, (0.79, 0.834)), "mig/exact .81 (.79 to .83), 10,000 rows"),
        (
            Score("elbo", "closed-form", -1234.56, 50, (-1240.0, -1230.0)),
            "elbo/closed-form -1,234.6 (-1,240.0 to -1,230.0), 50 rows",
        ),
        (Score("dci", "gbt", 0.0123, 500, part="completeness"), "dci/gbt/completeness .0123, 500 rows"),
        (Score("kl", "closed-form", -0.5, 3, (-0.5, -0.5)), "kl/closed-form -.50, 3 rows"),
        (Score("mig", "exact", float("nan"), 2), "mig/exact nan, 2 rows"),
    ],
)
def test_a_score_prints_its_name_value_interval_and_rows(score, text):
    assert str(score) == text


class TwoMembers(Sweep):
    def __init__(self):
        pass

    table = property(
        lambda self: [{"beta": 1, "run": "a", "mig/exact": 0.5}, {"beta": 4, "run": "b", "mig/exact": None}]
    )


def test_a_sweep_becomes_a_data_frame_of_its_runs(monkeypatch):
    pytest.importorskip("pandas")
    frame = TwoMembers().to_pandas()
    assert list(frame.index) == ["a", "b"] and frame.loc["b", "beta"] == 4 and frame["mig/exact"].isna().sum() == 1
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=naming("unbraid[pandas]", "Sweep.table")):
        TwoMembers().to_pandas()
