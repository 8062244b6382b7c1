"""Configs: stable ids, YAML both ways, key=value parsing."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from tests.support.configs import make_config
from tests.support.messages import naming
from unbraid.config import Choice, Config, Training, parse_overrides, parse_value
from unbraid.errors import UsageError


@given(
    st.integers(1, 10**6),
    st.integers(1, 4096),
    st.floats(1e-8, 1e3),
    st.integers(0, 2**31),
    st.none() | st.floats(1e-3, 10),
)
def test_yaml_round_trip(steps, batch, lr, seed, clip):
    config = make_config(steps=steps, batch=batch, lr=lr, seed=seed, clip=clip)
    again = Config.from_yaml(config.to_yaml())
    assert again == config
    assert again.run_id == config.run_id


def test_id_is_pinned_and_equal_in_another_process():
    config = make_config()
    assert config.run_id == "beta-tcvae-sprites-s0-8f647287"
    code = "import sys; from unbraid.config import Config; print(Config.from_yaml(sys.stdin.read()).run_id)"
    made = subprocess.run(
        [sys.executable, "-c", code], input=config.to_yaml(), capture_output=True, text=True, check=True
    )
    assert made.stdout.strip() == config.run_id


def test_a_path_is_stored_as_the_same_word():
    given = [
        dataclasses.replace(make_config(), data=Choice("paired", {"csv": csv})) for csv in (Path("a.csv"), "a.csv")
    ]
    assert given[0].to_yaml() == given[1].to_yaml()
    assert given[0].run_id == given[1].run_id


def test_id_depends_on_every_setting_and_not_on_key_order():
    ids = {make_config().run_id, make_config(lr=2e-3).run_id, make_config(seed=1).run_id, make_config(split=0.1).run_id}
    assert len(ids) == 4
    shuffled = dict(reversed(make_config().as_dict().items()))
    assert Config.from_dict(shuffled).run_id == make_config().run_id


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"format": 2}, ["format", 2, 1]),
        ({"extra": 1}, ["extra"]),
        ({"training": {"stepz": 3}}, ["stepz", "steps"]),
        ({"training": {"steps": "many"}}, ["steps", "many"]),
    ],
)
def test_foreign_configs_are_refused(change, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        Config.from_dict({**make_config().as_dict(), **change})


def test_missing_section_is_named():
    stored = make_config().as_dict()
    del stored["decoder"]
    with pytest.raises(UsageError, match="decoder"):
        Config.from_yaml(yaml.safe_dump(stored))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6", 6), ("1e-3", 1e-3), (".5", 0.5), ("-2", -2), ("true", True), ("none", None), ("no", "no"),
        ("mlp-chen", "mlp-chen"), ("[256,256]", (256, 256)), ("[]", ()), ("1_000", 1000),
        ("[[z0, z1],[z2]]", (("z0", "z1"), ("z2",))),
    ],
)  # fmt: skip
def test_values(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_overrides():
    assert parse_overrides(["beta=6", "data.size=32", "split=posX:0,1"]) == {
        "beta": 6,
        "data.size": 32,
        "split": "posX:0,1",
    }
    with pytest.raises(UsageError, match=naming("beta", "key=value")):
        parse_overrides(["beta"])
    with pytest.raises(UsageError, match="beta"):
        parse_overrides(["beta=1", "beta=2"])


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"batch": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"clip": -1.0}])
def test_impossible_training_is_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Training(**wrong)
