"""Users' own modules train as plain torch trains them, whatever their forward does."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import unbraid as ub
from tests.support.messages import naming
from unbraid.errors import RunError, UsageError
from unbraid.networks.own_modules import check_plain_tensors, find_users_networks, hash_code
from unbraid.run import score_runs

Z = 2
IMAGES = (np.random.default_rng(0).random((64, 1, 8, 8)) < 0.3).astype("float32")
PLAIN = {"z": Z, "steps": 6, "batch": 16, "lr": 1e-2, "device": "cpu", "split": "none"}


def decoder():
    return nn.Sequential(nn.Linear(Z, 64), nn.Unflatten(1, (1, 8, 8)))


def train(root, encoder, own_decoder=None, **settings):
    how = {**PLAIN, "root": root, "encoder": encoder, "decoder": own_decoder or decoder(), **settings}
    return ub.train("vae", data=IMAGES, **how)


class Own(nn.Module):
    """An encoder whose parts subclasses use in their own way."""

    def __init__(self, **attributes):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 4, 2, 1)
        self.out = nn.Linear(64, 2 * Z)
        vars(self).update(attributes)

    def forward(self, x):
        return self.out(torch.relu(self.conv(x)).flatten(1))


class Viewing(Own):
    def forward(self, x):
        return self.out(torch.relu(self.conv(x)).view(x.size(0), -1))


class Flat(nn.Module):
    def forward(self, x):
        return x.view(x.size(0), -1)


def viewing_chain():
    return nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.ReLU(), Flat(), nn.Linear(64, 2 * Z))


@pytest.mark.parametrize("make", [Viewing, viewing_chain])
def test_images_lie_in_memory_as_in_plain_torch(tmp_path, make):
    run = train(tmp_path, make())
    again = copy.deepcopy(run.model.encoder)
    assert torch.equal(again(torch.from_numpy(IMAGES))[:, :Z], run.encode(IMAGES))


class Averaging(Own):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean()
            self.calls = self.calls + 1
        return super().forward(x)


def test_buffers_that_a_module_sets_anew_are_kept(tmp_path):
    found = train(tmp_path, Averaging()).model.encoder
    assert int(found.calls) == PLAIN["steps"]
    assert 0.1 < float(found.mean) < 0.5


def test_stacked_members_keep_such_buffers_too(tmp_path):
    try:
        ub.encoder("averaging")(_make_averaging)
        how = {key: value for key, value in PLAIN.items() if key not in ("z", "device")}
        both = ub.sweep(
            "vae", data="sprites-small", encoder="averaging", decoder="mlp", decoder_hidden=(8,), z=Z, seed=[0, 1],
            members=2, metrics=[], report=False, device="cpu", root=tmp_path, **how,
        )  # fmt: skip
        assert [int(run.model.encoder.calls) for run in both.runs] == [PLAIN["steps"]] * 2
    finally:
        ub.encoder.remove("averaging")


def test_members_that_differ_in_a_plain_tensor_are_refused():
    same, other = (Own(mask=torch.arange(4) == number) for number in (1, 2))
    check_plain_tensors([same, copy.deepcopy(same)])
    with pytest.raises(UsageError, match=naming("Own.mask", "register_buffer")):
        check_plain_tensors([same, other])


def _make_averaging(shape, outputs):
    """Return an encoder that counts its calls."""
    made = Averaging()
    made.out = nn.LazyLinear(sum(outputs.values()) if isinstance(outputs, dict) else outputs)
    made(torch.zeros(1, *shape))
    made.mean, made.calls = torch.zeros(()), torch.zeros((), dtype=torch.int64)
    return made


def test_weights_that_encoder_and_decoder_share_stay_shared(tmp_path):
    out, first = nn.Linear(Z, 64), nn.Linear(64, 2 * Z)
    first.weight = nn.Parameter(torch.cat([out.weight.T, out.weight.T]).detach())
    shared = nn.Linear(64, 64)
    run = train(
        tmp_path,
        nn.Sequential(nn.Flatten(), shared, first),
        nn.Sequential(out, shared, nn.Unflatten(1, (1, 8, 8))),
    )
    assert torch.equal(run.model.encoder[1].weight, run.model.decoder[1].weight)
    assert not torch.equal(run.model.encoder[1].weight, shared.weight)


class TwoNames(Own):
    """Holds its layers under two names, statistics of a BatchNorm included."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.net = nn.Sequential(self.conv, self.norm, nn.ReLU(), nn.Flatten(), self.out)

    def forward(self, x):
        return self.net(x)


def test_a_layer_may_have_two_names(tmp_path):
    run = train(tmp_path, TwoNames())
    assert torch.equal(run.model.encoder.norm.running_mean, run.model.encoder.net[1].running_mean)
    assert bool(run.model.encoder.norm.running_mean.any())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_module_of_another_type_is_trained_and_used_in_float32(tmp_path, dtype):
    run = train(tmp_path, Own().to(dtype))
    assert run.encode(IMAGES).dtype == torch.float32


class Changing(Own):
    def forward(self, x):
        return super().forward(x.mul_(2).sub_(1))


def test_an_encoder_that_changes_its_input_is_refused(tmp_path):
    with pytest.raises(UsageError, match=naming("encoder", "in place")):
        train(tmp_path, Changing())


class Asking(Own):
    def forward(self, x):
        return super().forward(x) if x.sum().item() >= 0 else super().forward(-x)


def test_networks_that_cannot_be_stacked_are_told_how_to_train(tmp_path):
    try:
        ub.encoder("asking")(lambda shape, outputs: Asking())
        how = {**PLAIN, "root": tmp_path, "encoder": "asking", "decoder": "mlp", "decoder_hidden": (8,)}
        both = {"seed": [0, 1], "metrics": [], "report": False}
        with pytest.raises(RunError, match=naming("members=1")):
            ub.sweep("vae", data=IMAGES, members=2, **both, **how)
        assert len(ub.sweep("vae", data=IMAGES, members=1, **both, **how)) == 2
    finally:
        ub.encoder.remove("asking")


class Pair(Own):
    def forward(self, x):
        return super().forward(x).chunk(2, -1)


@pytest.mark.parametrize("registered", [False, True])
def test_an_encoder_returns_a_tensor(tmp_path, registered):
    try:
        ub.encoder("pair")(lambda shape, outputs: Pair())
        with pytest.raises(UsageError, match=naming("encoder", "tensor", "tuple")):
            train(tmp_path, "pair" if registered else Pair())
    finally:
        ub.encoder.remove("pair")


class Drawing(Own):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.1, self.training))


def test_a_module_that_draws_from_torchs_generator_is_refused(tmp_path):
    with pytest.raises(UsageError, match="generator"):
        train(tmp_path, Drawing())
    train(tmp_path, nn.Sequential(nn.Dropout(0.0), Own()))


class Scaled(Own):
    def forward(self, x):
        return self.scale * super().forward(x)


class Doubled(Own):
    def forward(self, x):
        return 2 * super().forward(x)


def test_what_a_module_computes_identifies_it(tmp_path):
    first = Scaled(scale=1.0)
    same, other, code = copy.deepcopy(first), Scaled(scale=3.0), Doubled()
    for each in (other, code):
        each.load_state_dict(first.state_dict())
    assert hash_code(first) == hash_code(same)
    assert len({hash_code(each) for each in (first, other, code)}) == 3
    run = train(tmp_path, first, decoder())
    with pytest.warns(UserWarning, match="other attributes"):
        _ = ub.load(run.path, data=IMAGES, encoder=other, decoder=run.model.decoder, device="cpu").model


class Checkpointing(Own):
    def forward(self, x):
        return self.out(torch.relu(checkpoint(self.conv, x, use_reentrant=True)).flatten(1))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_parameters_that_no_gradient_reaches_are_named(tmp_path):
    with pytest.warns(UserWarning, match=r"encoder\.conv\.weight"):
        train(tmp_path, Checkpointing())


def test_a_network_that_a_function_keeps_is_not_trained_itself(tmp_path):
    kept = functools.cache(lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(2 * Z)))

    def make(shape, outputs):
        """Return the same network again."""
        kept()(torch.zeros(1, *shape))
        return kept()

    try:
        ub.encoder("kept")(make)
        before = None
        how = {"decoder": "mlp", "decoder_hidden": (8,), **PLAIN, "root": tmp_path}
        run = ub.train("vae", data=IMAGES, encoder="kept", **how)
        before = run.encode(IMAGES)
        ub.train("vae", data=IMAGES, encoder="kept", seed=1, **how)
        assert torch.equal(run.encode(IMAGES), before)
    finally:
        ub.encoder.remove("kept")


def test_only_networks_with_users_classes_count_as_users():
    ours = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    assert find_users_networks(ours) == set()
    mixed = nn.Sequential(ours, Flat())
    assert find_users_networks(mixed) == {id(part) for part in mixed.modules()}


class Featured(nn.Module):
    """An encoder of fixed random features, which are no weights."""

    def __init__(self, pixels, outputs):
        super().__init__()
        self.features = torch.randn(pixels, 8)
        self.out = nn.Linear(8, outputs)

    def forward(self, x):
        return self.out(torch.cos(x.flatten(1) @ self.features.to(x.device)))


def test_runs_that_are_scored_together_are_encoded_each_by_its_own_module(tmp_path):
    def make(shape, outputs):
        """Return an encoder with features of its own."""
        return Featured(math.prod(shape), 2 * Z)

    try:
        ub.encoder("featured")(make)
        how = {**PLAIN, "root": tmp_path, "encoder": "featured", "decoder": "mlp", "decoder_hidden": (8,)}
        runs = [ub.train("vae", data=IMAGES, seed=seed, **how) for seed in (0, 1)]
        alone = [run.score("elbo/closed-form", save=False)[0].value for run in runs]
        together = [scores[0].value for _, scores in score_runs(runs, "elbo/closed-form", save=False)]
        assert together == pytest.approx(alone, rel=1e-6)
        with pytest.raises(RunError, match=naming("Featured.features", "register_buffer")):
            ub.sweep("vae", data=IMAGES, seed=[0, 1], members=2, metrics=[], report=False, **how)
    finally:
        ub.encoder.remove("featured")
