"""Checkpoints prove themselves: a changed byte, another owner, step or format is refused by name, and said."""

import hashlib
import json
import random

import pytest
import torch

from tests.support.configs import make_config
from tests.support.messages import names, naming
from unbraid import tensor_files
from unbraid.errors import RunError
from unbraid.store import RunFolder, load_tensors, save_tensors
from unbraid.tensor_files import load_checkpoint

OWNER = {"runs": ["a", "b"], "data": "abc", "players": ["model"]}
TENSORS = {"system/w": torch.arange(6.0).view(2, 3), "optimizer/m": torch.ones(2), "count": torch.tensor(3)}


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path / "run", make_config())
    for step in (1, 2):
        made.save_checkpoint(step, TENSORS, OWNER)
    return made


def rewrite(path, tensors=None, **facts):
    """Write a checkpoint again with other tensors or another header, as somebody else's program could."""
    old, header = load_tensors(path)
    save_tensors(path, old if tensors is None else tensors, {**header, **facts})


def latest(folder, **expected):
    told = []
    found = folder.latest_checkpoint(**{"owner": OWNER, "max_step": 5, **expected}, report=told.append)
    return found and found[0], " ".join(told)


def test_a_whole_checkpoint_is_used_without_a_word(folder):
    assert latest(folder) == (2, "")


def test_a_flipped_byte_anywhere_is_noticed(folder):
    newest = folder.checkpoints()[-1]
    content, chance = newest.read_bytes(), random.Random(0)
    for position in chance.sample(range(len(content)), 60):
        changed = bytearray(content)
        changed[position] ^= 1 << chance.randrange(8)
        newest.write_bytes(changed)
        try:
            step, tensors = load_checkpoint(newest, OWNER, 5)
        except RunError as error:
            assert newest.name in str(error)
        else:  # white space, or the name of a fact that nothing reads
            assert (step, tensors.keys()) == (2, TENSORS.keys())
            assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize(
    "change",
    [
        {"step": "1000000000"},
        {"step": "-1"},
        {"owner": json.dumps({**OWNER, "runs": ["b", "a"]})},
        {"digest": "0" * 64},
        {"tensors": {"system/w": TENSORS["system/w"]}},
        {"tensors": {**TENSORS, "system/w": TENSORS["system/w"].half()}},
    ],
    ids=str,
)
def test_a_changed_checkpoint_is_passed_over_and_said(folder, change):
    newest = folder.checkpoints()[-1]
    rewrite(newest, **change)
    step, told = latest(folder)
    assert step == 1
    assert names(told, newest.name, "step 1")


@pytest.mark.parametrize("key", OWNER)
def test_a_checkpoint_of_another_run_is_passed_over_and_said(folder, key):
    step, told = latest(folder, owner={**OWNER, key: ["other"]})
    assert step is None
    assert names(told, "another run", key, "step 0")


def test_another_format_is_not_taken_for_damage(folder):
    rewrite(folder.checkpoints()[-1], format="99")
    with pytest.raises(RunError, match=naming("99", folder.checkpoints()[-1].name)):
        latest(folder)


def test_a_step_beyond_the_last_is_refused(folder):
    step, told = latest(folder, max_step=1)
    assert step == 1
    assert names(told, folder.checkpoints()[-1].name, 2, 1)


def test_a_checkpoint_without_digest_is_used_and_said(folder):
    newest = folder.checkpoints()[-1]
    save_tensors(newest, TENSORS, {"step": "2"})
    step, told = latest(folder)
    assert step == 2
    assert names(told, newest.name, "digest")


def test_a_checksum_is_that_of_names_shapes_types_and_pieces(monkeypatch):
    """Threads hash the pieces of a large tensor; a small one is a piece of its own."""
    monkeypatch.setattr(tensor_files, "_BYTES_PER_HASH", 100)
    tensors = {"large": torch.arange(90.0), "small": torch.arange(3)}
    data = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    whole = b"large (90,) torch.float32\n"
    whole += b"".join(hashlib.sha256(data["large"][at : at + 100]).digest() for at in range(0, 360, 100))
    whole += b"small (3,) torch.int64\n" + hashlib.sha256(data["small"]).digest()
    assert tensor_files.checksum(tensors) == hashlib.sha256(whole).hexdigest()
