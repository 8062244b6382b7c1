"""Hostile settings: every recipe's numbers, names and unknown keys, on the command line."""

import pytest

from tests.hostile.arena import CPU, TINY, some_quick
from tests.hostile.settings_table import NAMES, NUMBERS, REAL, UNKNOWN, WHOLE

VALUES = [f"{key}={value}" for key in (*WHOLE, *REAL, *NAMES) for value in NUMBERS]


def replace_setting(setting):
    key = setting.partition("=")[0]
    return [*(word for word in TINY if word.partition("=")[0] != key), setting]


@pytest.mark.parametrize("number", some_quick(len(VALUES), every=16))
def test_values(arena, number):
    arena.attack("train", "beta-vae", *replace_setting(VALUES[number]), *CPU, succeeds=None)


@pytest.mark.parametrize("number", some_quick(len(UNKNOWN), every=3))
@pytest.mark.parametrize("command", ["train", "sweep"])
def test_unknown_settings(arena, number, command):
    arena.attack(command, "beta-vae", *replace_setting(UNKNOWN[number]), *CPU)
