"""The documents' own code runs, and what they say about the registries is true."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

import unbraid as ub
from tests import contracts
from unbraid.data import dataset
from unbraid.methods import objective
from unbraid.metrics import metric
from unbraid.networks import decoder, encoder

ROOT = Path(__file__).parents[1]


def blocks(name, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)


def run_block(name, number, few_steps=True):
    """Run a code block of a document, by default for a few steps, and return its variables."""
    code = blocks(name)[number]
    if few_steps:
        code = re.sub(r"steps=\d+", "steps=4", code)
    variables = {}
    exec(compile(code, f"{name}, block {number}", "exec"), variables)
    return variables


@pytest.mark.parametrize("number", range(len(blocks("README.md"))))
def test_readme_code_runs(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_block("README.md", number)  # the numbers that it prints are tested below
    assert "mig/histogram-mean" in capsys.readouterr().out


@pytest.mark.slow
def test_readme_example_separates_three_factors_and_its_traversal_moves(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = run_block("README.md", 0, few_steps=False)["run"]
    printed = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith("mig/"))
    assert float(printed["mig/histogram-mean"]) > 0.5
    assert count_moving_latents(run) == 3


def test_the_packaged_demo_keeps_what_readme_says_about_it():
    """The demo's finished run stands for README's example, whose training takes a minute."""
    run = ub.load("demo")
    assert next(score.value for score in run.score("mig/histogram-mean")) > 0.5
    assert count_moving_latents(run) == 3


def count_moving_latents(run):
    """Return how many latents change a picture visibly between -2 and 2."""
    one_each = torch.eye(run.model.space.width)
    low, high = run.decode(-2 * one_each), run.decode(2 * one_each)
    return int(((high - low).abs().flatten(1).amax(1) > 0.5).sum())


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


def test_every_promise_of_security_names_tests_that_exist():
    table = (ROOT / "SECURITY.md").read_text("utf-8").partition("|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    assert len(rows) >= 10
    for promise, tests in rows:
        named = re.findall(r"`(tests/[^`]+\.py)`(?: \(([^)]*)\))?", tests)
        assert named, promise
        for path, functions in named:
            defined = defined_names(ROOT / path)
            wanted = set(re.findall(r"`(test_[^`]+)`", functions))
            assert wanted <= defined, (path, wanted - defined)
            assert any(name.startswith("test_") for name in defined) or path.endswith("arena.py"), path


def test_the_plan_of_a_large_study_is_what_its_script_prints(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", ["plan_study.py"])
    importlib.import_module("plan_study").main()
    assert capsys.readouterr().out == blocks("docs/scale.md", "text")[0]
