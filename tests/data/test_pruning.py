"""Conditions on factors: what is held out, against plain Python, and what cannot be read."""

import pytest
import torch

from tests.support.messages import naming
from unbraid.config import parse_axes, parse_overrides
from unbraid.data import Factor, FactorDataset, Pixels
from unbraid.data.splits import split
from unbraid.errors import UsageError

SHAPES, SCALES = ("square", "ankle boot", "heart"), (0.5, 0.6, 0.7, 0.8)
FACTORS = (Factor("shape", 3, SHAPES), Factor("scale", 4, SCALES), Factor("digit", 5, tuple("56789")), Factor("x 0", 6))
DATA = FactorDataset("things", Pixels(torch.zeros(360, 1), (1,)), FACTORS)

CONDITIONS = {
    "digit=7 & scale>=0.7": lambda shape, scale, digit, x: digit == 7 and scale >= 0.7,
    "digit=7 & scale>=.7 | shape=heart & x 0<1": lambda shape, scale, digit, x: (
        (digit == 7 and scale >= 0.7) or (shape == "heart" and x < 1)
    ),
    "digit==7&(scale>=.7|shape=heart)&x 0!=3": lambda shape, scale, digit, x: (
        digit == 7 and (scale >= 0.7 or shape == "heart") and x != 3
    ),
    "shape!='ankle boot' & shape != heart": lambda shape, scale, digit, x: shape == "square",
    "scale<=#1 & digit>#3": lambda shape, scale, digit, x: scale <= 0.6 and digit > 8,
    "scale<=0.60001 & scale > 0.5": lambda shape, scale, digit, x: scale == 0.6,
    "((x 0>=5))": lambda shape, scale, digit, x: x == 5,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_rows_that_fit_are_held_out(condition):
    made = split(DATA, f"prune:{condition}")
    values = DATA.values_of(torch.arange(len(DATA))).tolist()
    named = [(SHAPES[a], SCALES[b], 5 + c, d) for a, b, c, d in values]
    wanted = [row for row, given in enumerate(named) if CONDITIONS[condition](*given)]
    assert made.held_out.tolist() == wanted
    assert sorted(made.train.tolist() + wanted) == list(range(len(DATA)))


def test_a_missing_label_fits_nothing():
    table = torch.tensor([[0], [1], [-1], [1]])
    data = FactorDataset("some", Pixels(torch.zeros(4, 1), (1,)), (Factor("kind", 2),), table)
    assert split(data, "prune:kind=1").held_out.tolist() == [1, 3]
    assert split(data, "prune:kind!=1").held_out.tolist() == [0]
    assert split(data, "prune:kind<=0").held_out.tolist() == [0]


def test_a_condition_is_one_word_of_the_command_line():
    text = "split=prune:digit=7 & scale>=0.7 | shape=heart, 'a,b'"
    assert parse_overrides([text]) == {"split": text.removeprefix("split=")}
    assert parse_axes([text, "beta=1,2"]) == {"split": [text.removeprefix("split=")], "beta": [1, 2]}


@pytest.mark.parametrize(
    ("condition", "facts"),
    [
        ("digits=7", ["digits", "things", "digit"]),
        ("shape=hart", ["hart", "shape", "heart"]),
        ("shape<heart", ["shape"]),
        ("digit=seven", ["seven", "digit", 5, 9]),
        ("digit=4", ["things", "digit=4", 5, 9]),
        ("scale=#4", ["scale", "#4", 4]),
        ("x 0>9 | digit=7", ["things", "x 0>9", 6, 0, 5]),
        ("digit=7 &", ["factor", "end"]),
        ("digit=7 | & scale<1", ["factor", "'& scale < 1'"]),
        ("digit 7", ["= != < <= > >=", "end"]),
        ("(digit=7", [")", "end"]),
        ("digit=7)", ["&", "|", "')'"]),
        ("digit=", ["value", "end"]),
        ("", ["factor", "end"]),
        ("shape='heart", ["'heart", "quote"]),
        ("scale>=0.5", [360]),
    ],
)
def test_bad_conditions_say_what_is_wrong(condition, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        split(DATA, f"prune:{condition}")
