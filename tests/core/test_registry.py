"""Names, settings and types: wrong ones answer with what would have been right."""

from typing import Literal

import pytest

from tests.support.messages import naming
from unbraid.errors import SettingError, UsageError
from unbraid.registry import Registry, coerce, read_settings
from unbraid.types import Weight


@pytest.fixture
def registry():
    made = Registry("thing")

    @made("alpha-beta", year=2018, reference="someone2018")
    def alpha_beta(
        first, *, rate: Weight = 1.0, size: int = 3, mode: Literal["a", "b"] = "a", hidden: tuple[int, ...] = (1,)
    ):
        """Summary line.

        More.
        """

    return made


def test_entry_knows_its_settings(registry):
    entry = registry["alpha-beta"]
    assert (entry.summary, entry.year, entry.reference) == ("Summary line.", 2018, "someone2018")
    assert list(entry.settings) == ["rate", "size", "mode", "hidden"]
    assert entry.sweepable == {"rate"}


class Base:
    def __init__(self, *, first: int = 1, second: int = 2): ...


class Extended(Base):
    """Takes its base class's settings, too."""

    def __init__(self, *, second: int = 5, third: int = 3, **others):
        super().__init__(second=second, **others)


class Closed(Extended):
    """Takes its own settings only."""

    def __init__(self, *, fourth: int = 4):
        super().__init__()


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Base, {"first": 1, "second": 2}),
        (Extended, {"first": 1, "second": 5, "third": 3}),
        (Closed, {"fourth": 4}),
        (type("Bare", (Extended,), {}), {"first": 1, "second": 5, "third": 3}),
    ],
)
def test_settings_of_a_class_are_its_bases_where_it_passes_them_on(make, settings):
    assert {name: parameter.default for name, parameter in read_settings(make).items()} == settings


def test_resolve_fills_defaults_and_widens(registry):
    resolved = registry["alpha-beta"].resolve({"rate": 2, "hidden": [4, 5]})
    assert resolved == {"rate": 2.0, "size": 3, "mode": "a", "hidden": (4, 5)}
    assert isinstance(resolved["rate"], float)


def test_unknown_name_names_the_nearest_and_the_list(registry):
    with pytest.raises(UsageError, match=naming("thing", "alfa-beta", "alpha-beta")) as caught:
        registry["alfa-beta"]
    assert str(caught.value).count("alpha-beta") == 2


def test_unknown_setting_names_the_nearest(registry):
    with pytest.raises(UsageError, match=naming("sise", "size", "hidden", "mode", "rate")):
        registry["alpha-beta"].resolve({"sise": 3})


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"size": 2.5}, ["size", 2.5]),
        ({"size": True}, ["size", True]),
        ({"rate": "fast"}, ["rate", "fast"]),
        ({"mode": "c"}, ["mode", "a", "b", "c"]),
        ({"hidden": (1, "x")}, ["hidden[1]", "x"]),
    ],
)
def test_wrong_types_are_refused(registry, settings, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        registry["alpha-beta"].resolve(settings)


def test_optional_and_fixed_length():
    assert coerce("x", None, float | None) is None
    assert coerce("x", 1, float | None) == 1.0
    with pytest.raises(UsageError, match=naming("x", 2, 3)):
        coerce("x", (1, 2, 3), tuple[int, int])


def test_two_functions_cannot_share_a_name(registry):
    with pytest.raises(UsageError, match=naming("thing", "alpha-beta")):

        @registry("alpha-beta")
        def other():
            """Other."""


def test_numbers_that_yaml_leaves_as_text_are_numbers_where_one_is_expected():
    assert [coerce("x", text, float) for text in ("1e-3", "5E-4", "-2.5e3", ".5e+1")] == [1e-3, 5e-4, -2500.0, 5.0]
    assert coerce("x", "1E3", int) == 1000
    assert coerce("x", "1e-1", str | float) == 0.1
    assert coerce("x", ("1e1", 2), tuple[int, ...]) == (10, 2)
    assert coerce("x", "1e3", str) == "1e3"
    for text, kind in (("1e-3", int), ("e3", float), ("1e", float), ("\u0661e3", float), ("1e-3 ", float)):
        with pytest.raises(SettingError):
            coerce("x", text, kind)
