"""Every method, latent block, prior and network has its place in the documentation, and what stands there is true."""

import ast
import functools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from unbraid.config import Choice, parse_overrides, parse_value
from unbraid.data import load
from unbraid.latents import block, prior
from unbraid.methods import objective
from unbraid.networks import decoder, encoder, likelihood, refiner
from unbraid.training.configure import configure, to_dotted

DOCS = Path(__file__).parents[1] / "docs"
GRIDS: dict[str, dict[str, Any]] = {
    "sprites-small": {"positions": 8},
    "sprites": {"positions": 2, "orientations": 2},
    "sprites-pairs": {"positions": 2, "orientations": 2},
}
SECTIONS = ["Generative process", "Objective", "When to use it", "Limits", "Command", "Reference"]
SHAPES = {"mlp-esmaeili-28": (1, 28, 28), "conv-small": (1, 32, 32)}
NORMAL = {"z.mean": 10, "z.log_variance": 10}


@functools.cache
def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


@functools.cache
def grid(name: str):
    """A data set of commands, its largest grid cut down: only shape and factors matter here."""
    return load(name, GRIDS[name])


def checked(recipe: str, given: dict[str, Any]) -> None:
    """The config that training would have; a `UsageError` if anything is unknown or does not go together."""
    data = given.pop("data", "sprites")
    configure(recipe, Choice(data, {}), grid(data), given)


def refining(name: str, given: dict[str, Any]) -> None:
    """As `checked`, for a recipe that refines a run of any kind."""
    parent = {"run": "first", "content": "", "config": {}}
    configure(name, Choice("sprites-small", {}), grid("sprites-small"), given, parent=parent)


def commands(text: str, command: str = "train") -> list[str]:
    return re.findall(rf"^(unbraid {command} [^#\n]+)", text, re.MULTILINE)


def calls(text: str, function: str = "train") -> list[tuple[list[Any], dict[str, Any]]]:
    """Arguments of each `unbraid.train(…)` in the Python blocks of a page."""
    found = []
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"unbraid.{function}":
                named = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
                found.append(([ast.literal_eval(a) for a in node.args], named))
    return found


def readme_rows() -> list[str]:
    return re.findall(r"^\| `([\w-]+)` \| \d{4} \|", page("../README.md"), re.MULTILINE)


def settings_as_typed(text: str) -> dict[str, Any]:
    """What `key=value` in backticks says."""
    return {key: parse_value(value) for key, value in re.findall(r"`([\w.]+)=([^`]*)`", text)}


@pytest.mark.parametrize("name", list(objective))
def test_method_page_states_year_reference_and_every_setting_with_its_default(name):
    text, entry = page(f"methods/{name}.md"), objective[name]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert "$$" in text
    assert len(text.splitlines()) <= 70, "a page is to be read at once"
    reference = text.partition("## Reference")[2]
    assert f"`{entry.reference}`" in reference
    assert str(entry.year) in reference
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", text, re.MULTILINE))
    assert rows.keys() == entry.settings.keys()
    typed = entry.resolve({key: parse_value(value) for key, value in rows.items()})
    assert typed == entry.resolve({})
    stated = settings_as_typed(text.partition("## Objective")[2].partition("## Command")[0])
    elsewhere = {key: value for key, value in entry.facts.defaults.items() if key not in entry.settings}
    assert elsewhere.items() <= stated.items()


@pytest.mark.parametrize("name", list(objective))
def test_method_page_has_a_command_and_a_call_that_are_valid(name):
    text, stage = page(f"methods/{name}.md").partition("## Command")[2], objective[name].facts.stage
    if stage is not None:
        for _, option, kind, *words in [shlex.split(line)[2:] for line in commands(text, "refine")]:
            assert (option, kind) == ("--with", stage)
            refining(name, parse_overrides(words))
        ((_, kind), given) = calls(text, "refine")[0]
        assert kind == stage
        refining(name, to_dotted(name, given))
        return
    typed = [shlex.split(line)[2:] for line in commands(text)]
    assert typed and all(words[0] == name for words in typed)
    for recipe, *words in typed:
        checked(recipe, parse_overrides(words))
    (((recipe,), given),) = calls(text)
    assert recipe == name
    checked(recipe, to_dotted(recipe, given))


def test_methods_are_all_in_the_index_and_nothing_else_is():
    linked = re.findall(r"\[([\w-]+)\]\(\1\.md\)", page("methods/index.md"))
    listed = page("methods/index.md").partition(":hidden:")[2].strip("`\n").split()
    assert sorted(linked) == sorted(listed) == sorted(objective)
    assert {path.stem for path in (DOCS / "methods").glob("*.md")} == {*objective, "index"}
    assert re.findall(r"\(docs/methods/([\w-]+)\.md\)", page("../README.md"))[1:] == readme_rows()


@pytest.mark.parametrize(
    ("document", "registry"), [("latents.md", block), ("latents.md", prior), ("networks.md", likelihood)]
)
def test_blocks_priors_and_likelihoods_have_a_row_with_their_defaults(document, registry):
    rows = dict(re.findall(r"^\| `([\w-]+)` \|([^|]*)\|", page(document), re.MULTILINE))
    for name in registry:
        assert registry[name].resolve(settings_as_typed(rows[name])) == registry[name].resolve({}), name
        assert settings_as_typed(rows[name]).keys() == registry[name].settings.keys(), name


@pytest.mark.parametrize("name", sorted({*encoder, *decoder}))
def test_networks_have_a_row_with_their_parameter_counts(name):
    row = next(line for line in page("networks.md").splitlines() if line.startswith(f"| `{name}` |"))
    shape = SHAPES.get(name, (1, 64, 64))
    counts = []
    for registry, asked in ((encoder, (shape, NORMAL)), (decoder, (10, shape))):
        made = list(registry[name].make(*asked).parameters()) if name in registry else []
        counts.append(f"{sum(p.numel() for p in made):,}" if made else "")
    assert [cell.strip() for cell in row.split("|")][4:6] == counts


@pytest.mark.parametrize("name", list(refiner))
def test_refiners_have_a_row_with_their_parameter_count(name):
    row = next(line for line in page("networks.md").partition("## Refiners")[2].splitlines() if f"`{name}`" in line)
    count = sum(p.numel() for p in refiner[name].make((1, 64, 64), 5).parameters())
    assert f" {count:,} " in row


@pytest.mark.parametrize("document", ["latents.md", "networks.md"])
def test_commands_and_calls_of_other_pages_are_valid(document):
    for line in commands(page(document)):
        recipe, *words = shlex.split(line)[2:]
        checked(recipe, parse_overrides(words))
    for (recipe,), given in calls(page(document)):
        checked(recipe, to_dotted(recipe, given))
