"""Groups of a sweep: which members train together, and how many fit."""

import itertools

import pytest
from hypothesis import given, strategies as st
from torch.utils.flop_counter import FlopCounterMode

from unbraid.config import Choice
from unbraid.data import load
from unbraid.training import configure, grouping as members
from unbraid.training.prepare import prepare


def config(**overrides):
    small = {"network": "mlp", "encoder.hidden": (16,), "decoder.hidden": (16,), "z": 3, "batch": 32}
    own = {**small, **overrides}
    return configure("beta-tcvae", Choice("sprites-small", {}), load("sprites-small"), own)


def test_groups_differ_in_structure_and_members_in_numbers():
    together = [config(), config(seed=1, lr=0.1, clip=1.0, beta=2.0, alpha=0.5)]
    apart = [config(batch=16), config(estimator="mss"), config(steps=9), config(z=4), config(decay="linear")]
    groups = members.group_by_structure([together[0], *apart, together[1]])
    assert groups == [together, *([one] for one in apart)]


@given(st.lists(st.integers(1, 40), max_size=5), st.integers(1, 12))
def test_large_groups_are_split_evenly_and_lose_nobody(sizes, most):
    groups = [[f"{number}-{index}" for index in range(size)] for number, size in enumerate(sizes)]
    parts = members.split_evenly(groups, most)
    assert list(itertools.chain(*parts)) == list(itertools.chain(*groups))
    assert all(len(part) <= most for part in parts)
    for number in range(len(groups)):
        own = [len(part) for part in parts if part[0].startswith(f"{number}-")]
        assert max(own) - min(own) <= 1


def test_as_many_fit_as_memory_has_room_for(monkeypatch):
    state = prepare(config(), load("sprites-small"))
    assert members.find_max_members(state) == members.MAX_MEMBERS_ON_CPU
    each = members.estimate_member_bytes(state)
    monkeypatch.setattr(members, "available_memory", lambda: int(3 * each / members.MAX_MEMORY_SHARE) + 2)
    assert members.find_max_members(state) == 3
    monkeypatch.setattr(members, "available_memory", lambda: 1000)
    assert members.find_max_members(state) == 1


def test_a_cpu_trains_large_members_one_after_the_other():
    data = load("sprites-small")
    small = prepare(config(), data)
    with FlopCounterMode(display=False) as counter:
        small.rehearse(small.epochs.batch)
    assert members.count_operations(small) == pytest.approx(counter.get_total_flops(), rel=0.05)
    large = prepare(config(**{"encoder.hidden": (256, 256), "batch": 64}), data)
    assert members.count_operations(large) > members.MAX_OPERATIONS_TOGETHER
    assert members.find_max_members(large) == 1


def test_the_memory_of_a_member_grows_with_its_batch_and_pairs():
    data = load("sprites-small")
    small, large = (members.estimate_member_bytes(prepare(config(batch=batch), data)) for batch in (64, 256))
    parameters = members.TENSORS_PER_PARAMETER * sum(
        p.numel() * 4 for p in prepare(config(), data).group.parameters.values()
    )
    assert 3.5 * (small - parameters) < large - parameters  # every row saves at least its activations
    exact = prepare(config(batch=64), data).rehearse(64)
    assert small - parameters == pytest.approx(members.BYTES_PER_SAVED_BYTE * exact, rel=0.1)
