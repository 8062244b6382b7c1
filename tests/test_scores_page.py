"""docs/scores.md explains every registered metric, under its family's heading, and none that does not exist."""

import re
from pathlib import Path

import numpy as np
import pytest

from unbraid.metrics import metric

PAGE = (Path(__file__).parents[1] / "docs" / "scores.md").read_text("utf-8")
SECTIONS = re.split(r"^(?=#{2,3} )", PAGE, flags=re.MULTILINE)
FAMILIES = sorted({name.partition("/")[0] for name in metric})


def section(family):
    """The text below the heading that names the family."""
    found = [text for text in SECTIONS if f"`{family}`" in text.partition("\n")[0]]
    assert len(found) == 1, f"docs/scores.md needs one heading with `{family}` in it, and has {len(found)}"
    return found[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_a_section_that_names_its_protocols_and_its_source(family):
    text = section(family)
    for name in (name for name in metric if name.startswith(f"{family}/")):
        protocol = name.partition("/")[2]
        assert f"`{protocol}`" in text or f"`{name}`" in text or f"`/{protocol}`" in text, f"{name} has no text"
    assert re.search(r"\d{4}", text), f"{family} cites nothing"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_in_a_summary_table(family):
    assert re.search(rf"^\|.*`{family}/", PAGE, re.MULTILINE), f"no row of a table has {family}"


def test_the_page_names_no_score_that_does_not_exist():
    named = {name for name in re.findall(r"`([\w-]+/[\w/-]+)`", PAGE) if name.partition("/")[0] in FAMILIES}
    assert named
    for name in named:
        assert any(f"{name}/".startswith(f"{known}/") for known in metric), name


def test_the_code_on_the_page_runs():
    rng = np.random.default_rng(0)
    known = {"codes": rng.standard_normal((200, 3)), "factors": rng.integers(0, 4, (200, 2))}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/scores.md", "exec"), known)
