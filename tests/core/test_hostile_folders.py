"""A stranger's folder: no link is followed, no text explodes, and a wrong field is named with its file."""

import json
import os
import random
import time

import pytest
import torch
import yaml

from tests.support.configs import make_config
from tests.support.messages import naming
from unbraid.atomic import remove_partial_files
from unbraid.errors import RunError
from unbraid.metrics import Score
from unbraid.plain_text import ParseError, parse_json, parse_yaml
from unbraid.schema import FILES
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.plan import SweepPlan

SCORE = {"metric": "mig", "protocol": "exact", "value": 0.5, "samples": 8, "interval": [0.1, 0.9]}


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path / "run", make_config())
    made.write_json("status", {"state": "running", "step": 3})
    made.append_line("scores", SCORE)
    made.append_line("history", {"step": 1, "loss": 3.0})
    return made


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


ACTIONS = {
    "scores.jsonl": lambda run: run.append_line("scores", SCORE),
    "history.jsonl": lambda run: run.cut_history(0),
    "status.json": lambda run: run.write_json("status", {"state": "finished"}),
    "config.yaml": lambda run: run.config,
    "data.json": lambda run: run.read_json("data"),
    "lock": lambda run: run.locked().__enter__(),
    "model.safetensors": lambda run: run.save_model({"a": torch.ones(1)}),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_a_linked_file_is_refused_and_its_target_untouched(folder, victim, name):
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(victim)
    with pytest.raises(RunError, match=naming(folder.path / name, "link")):
        ACTIONS[name](folder)
    assert victim.read_text() == "precious"


def test_linked_checkpoints_are_neither_read_nor_removed(folder, tmp_path):
    other = RunFolder.create(tmp_path / "other", make_config())
    other.save_checkpoint(1, {"a": torch.ones(1)})
    (folder.path / "checkpoints").symlink_to(other.path / "checkpoints")
    for action in (folder.checkpoints, folder.latest_checkpoint, lambda: folder.save_checkpoint(2, {})):
        with pytest.raises(RunError, match=naming(folder.path / "checkpoints", "link")):
            action()
    assert len(other.checkpoints()) == 1


def test_a_link_to_the_run_itself_is_fine(folder, tmp_path):
    (tmp_path / "short").symlink_to(folder.path)
    assert RunFolder.open(tmp_path / "short").config == make_config()


def test_a_linked_run_in_a_sweep_is_refused(folder, tmp_path):
    sweep = SweepFolder(tmp_path / "sweep")
    (sweep.path / "runs").mkdir(parents=True)
    (sweep.path / "runs" / "one").symlink_to(folder.path)
    with pytest.raises(RunError, match=naming("one", "link")):
        _ = sweep.run_folder("one").config


def test_a_pipe_is_refused_without_waiting(folder):
    os.mkfifo(folder.path / "data.json")
    with pytest.raises(RunError, match=naming("data.json")):
        folder.read_json("data")


def test_stray_partial_files_are_removed(folder):
    for name in (".x.part", ".config.yaml.99999999999999.part", ".a.b.part", "..part"):
        (folder.path / name).write_text("x")
    with folder.locked():
        assert not list(folder.path.glob(".*.part"))


def test_partial_files_of_others_stay(tmp_path):
    """A page is written into the folder of a run that another machine may train: its processes look dead here."""
    for name in (".report.html.0.999999999.part", ".status.json.4.999999999.part", ".report.html.bak.0.999999999.part"):
        (tmp_path / name).write_text("half")
    remove_partial_files(tmp_path, "report.html")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".report.html.bak.0.999999999.part", ".status.json.4.999999999.part"]


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)
)


@pytest.mark.parametrize(
    "text", [BOMB, "[" * 5000, "{a: " * 50, "a: 2020-99-99", "\x00", "a: !!python/name:os.system", "%", "9" * 5000]
)
def test_hostile_yaml_is_refused_at_once(text):
    started = time.monotonic()
    with pytest.raises(ParseError):
        parse_yaml(text)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 40 + "1" + "}" * 40, "9" * 5000, "{", "NaN]", ""])
def test_hostile_json_is_refused(text):
    with pytest.raises(ParseError):
        parse_json(text)


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("status.json", '{"format": 1, "state": "fine"}', "state"),
        ("status.json", '{"format": 2, "state": "running"}', "format"),
        ("status.json", '{"state": "running"}', "format"),
        ("status.json", '{"format": 1, "state": "running", "step": "x"}', "step"),
        ("data.json", '{"format": 1, "shape": "x"}', "shape"),
        ("data.json", '{"format": 1, "shape": [1, -3]}', "shape"),
        ("data.json", '{"format": 1, "factors": [1]}', "factors"),
        ("left-out.json", '{"format": 1}', "metrics"),
        ("parent.json", '{"format": 1, "max_change": "x"}', "max_change"),
        ("environment.json", '{"format": 1, "threads": -1}', "threads"),
        ("group.json", '{"format": 1, "runs": ["../x"]}', "runs"),
        ("members.json", '{"format": 1, "members": {"a": 1}}', "members"),
        ("members.json", '{"format": 1}', "members"),
        ("history.jsonl", '{"format": 1, "loss": 1}\n', "step"),
        ("history.jsonl", '{"format": 1, "step": 1, "loss": "x"}\n', "loss"),
        ("scores.jsonl", json.dumps({"format": 1, **SCORE, "interval": [1]}) + "\n", "interval"),
        ("scores.jsonl", "{}\n", "format"),
        ("scores.jsonl", "[]\n", "line 1"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(folder, name, content, field):
    (folder.path / name).write_text(content)
    stem, _, ending = name.partition(".")
    with pytest.raises(RunError, match=naming(folder.path / name, field)):
        folder.read_lines(stem) if ending == "jsonl" else folder.read_json(stem)


def test_the_table_of_scores_has_every_field_of_a_score():
    assert set(Score.__dataclass_fields__) == {name.rstrip("?") for name in FILES["scores"]} - {"format"}


def test_every_table_wants_a_format():
    assert all("format" in table for table in FILES.values())


@pytest.mark.parametrize("section", ["objective", "latents", "training", "data", "model"])
def test_a_wrong_section_of_a_config_is_named(folder, section):
    (folder.path / "config.yaml").write_text(yaml.safe_dump({**folder.config.as_dict(), section: 3}))
    with pytest.raises(RunError, match=naming("config.yaml", section)):
        _ = folder.config


@pytest.mark.parametrize("content", [b"\xff\x00\x81", b"[]", b"format: 1\naxes: 3\n", BOMB.encode()])
def test_a_damaged_plan_of_a_sweep_is_named(tmp_path, content):
    folder = SweepFolder(tmp_path)
    folder.plan_path.write_bytes(content)
    with pytest.raises(RunError, match=naming(folder.plan_path)):
        _ = folder.plan


def test_a_reversed_group_is_refused(tmp_path):
    folder = SweepFolder(tmp_path)
    group = folder.add_group(["a", "b"])
    assert folder.list_runs(group) == ["a", "b"]
    folder.group_folder(group).write_json("group", {"runs": ["b", "a"]})
    with pytest.raises(RunError, match=naming("group.json", group)):
        folder.list_runs(group)


def test_a_flipped_byte_in_a_text_file_is_refused_or_changes_nothing(folder, tmp_path):
    plan = SweepFolder(tmp_path / "sweep")
    plan.add(SweepPlan({"recipe": ["vae"], "beta": [1, 2]}, ["mig/exact"]), {"a": {"beta": 1}})
    readers = {
        folder.path / "status.json": lambda: folder.read_json("status"),
        folder.path / "scores.jsonl": lambda: folder.read_lines("scores"),
        folder.path / "history.jsonl": lambda: folder.read_lines("history"),
        plan.path / "members.json": lambda: plan.members,
        plan.plan_path: lambda: plan.plan,
    }
    chance = random.Random(1)
    for path, read in readers.items():
        content, expected = path.read_bytes(), read()
        for _ in range(40):
            changed = bytearray(content)
            changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
            try:
                found = read()
            except RunError as error:
                assert str(path) in str(error)
            else:
                assert _known(found) == _known(expected), bytes(changed)
        path.write_bytes(content)


def _known(value):
    """The content without fields that no table names, such as a `sum` whose own name was changed."""
    if isinstance(value, list):
        return [_known(each) for each in value]
    fields = {"format", "state", "step", "loss", *SCORE}
    return {key: each for key, each in value.items() if key in fields} if isinstance(value, dict) else value
