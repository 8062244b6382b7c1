"""The documents' own code runs, and what they say about the registries is true."""

import ast
import re
from pathlib import Path

import pytest

from tests import contracts
from unbraid.data import dataset
from unbraid.methods import objective
from unbraid.metrics import metric
from unbraid.networks import decoder, encoder

ROOT = Path(__file__).parents[1]


def blocks(name, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(blocks("README.md"))))
def test_readme_code_runs(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = blocks("README.md")[number].replace("steps=300", "steps=20")  # the numbers it prints are not tested here …
    code = code.replace('run.score("mig", "tc")', 'run.score("mig", "tc", steps=20)')  # … nor those of a discriminator
    exec(compile(code, f"README.md, block {number}", "exec"), {})
    assert "mig/histogram-mean" in capsys.readouterr().out


def test_readme_lists_every_objective_with_its_year():
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\d{4}) \|", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE))
    assert rows == {name: str(objective[name].year) for name in objective}


def test_readme_names_every_network_and_data_set():
    text = (ROOT / "README.md").read_text("utf-8")
    for name in {*encoder, *decoder, *dataset}:
        assert f"`{name}`" in text, name


EXAMPLES = {
    "sparse-vae": (objective, contracts.check_objective),
    "linear": (encoder, lambda name: contracts.check_network("encoder", name)),
    "bars": (dataset, contracts.check_dataset),
    "active/variance": (metric, contracts.check_metric),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_contributing_examples_register_and_keep_the_contracts(name):
    code = next(block for block in blocks("CONTRIBUTING.md") if f'"{name}"' in block)
    decorated = code[code.index("\n@") :].strip().splitlines()
    assert len(decorated) <= 10, "the examples promise to be short"
    registry, check = EXAMPLES[name]
    assert name not in registry
    exec(compile(code, f"CONTRIBUTING.md, {name}", "exec"), {"__name__": "example"})
    try:
        check(name)
    finally:
        registry.remove(name)


def defined_names(path):
    """Return the functions, classes and methods (`Class.method`) that a file defines."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names


def test_architecture_names_files_and_functions_that_exist():
    rows = re.findall(
        r"^\| `(src/[^`]+)` \| ([^|]+) \|", (ROOT / "docs/architecture.md").read_text("utf-8"), re.MULTILINE
    )
    assert 15 <= len({path for path, _ in rows}) <= 20
    for path, functions in rows:
        assert set(re.findall(r"`([^`]+)`", functions)) <= defined_names(ROOT / path), path
