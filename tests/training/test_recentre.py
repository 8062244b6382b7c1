"""Coordinates of a second stage's latents: the best ones for the prior, in which every reconstruction is the same."""

import pytest
import torch

import unbraid as ub
from unbraid.data.splits import split
from unbraid.latents import Concrete, Normal, Space
from unbraid.models.recentre import MAX_ROWS_TO_FIT, Frame, choose_rows_to_fit
from unbraid.noise import draw, seed_tensor
from unbraid.store import load_tensors, save_tensors

SMALL = {"network": "mlp", "encoder_hidden": (16,), "decoder_hidden": (16,), "batch": 16, "device": "cpu"}
SPACE = Space({"a": Normal(size=2), "c": Concrete(classes=3), "z": Normal(size=3)})


def posteriors(seed=0, rows=500):
    made = torch.Generator().manual_seed(seed)
    shift = {"a": 2.0, "c": 0.0, "z": -3.0}
    widths = {"a": 4, "c": 4, "z": 6}
    return {name: torch.randn(rows, width, generator=made) * 0.4 + shift[name] for name, width in widths.items()}


def kl(posterior):
    """Of the Normal blocks, written out."""
    parts = [posterior[name].chunk(2, -1) for name in ("a", "z")]
    return float(sum(0.5 * (m.square() + v.exp() - v - 1).sum(-1).mean() for m, v in parts))


def test_no_other_shift_and_unit_have_a_smaller_kl():
    frame, given = Frame(SPACE).double(), {name: p.double() for name, p in posteriors().items()}
    frame.fit([{n: p[:100] for n, p in given.items()}, {n: p[100:] for n, p in given.items()}])
    best = kl(frame.posterior(given))
    assert best < kl(given) - 5
    for change in (0.9, 0.99, 1.01, 1.1):
        for name in ("origin", "unit"):
            other = Frame(SPACE).double()
            other.load_state_dict(frame.state_dict())
            getattr(other, name).mul_(change)
            assert kl(other.posterior(given)) > best
    mean, log_variance = frame.posterior(given)["z"].chunk(2, -1)
    torch.testing.assert_close(mean.mean(0), torch.zeros(3).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close((mean.square() + log_variance.exp()).mean(0), torch.ones(3).double())
    assert torch.equal(frame.posterior(given)["c"], given["c"])


def test_a_draw_reaches_the_decoder_as_before():
    """mu + sigma e in either coordinates; and a second fit to the same rows changes nothing."""
    frame, given = Frame(SPACE).double(), {name: p.double() for name, p in posteriors(1).items()}
    noise = {n: t[0] for n, t in draw(SPACE.needs(500), seed_tensor(3), 0).items()}
    normal = Space({"a": SPACE.blocks["a"], "z": SPACE.blocks["z"]})
    before = normal.join(normal.sample(given, noise))
    frame.fit([given])
    plain = frame.origin.clone(), frame.unit.clone()
    drawn = normal.sample(frame.posterior(given), noise)
    whole = torch.cat([drawn["a"], torch.zeros(500, 3), drawn["z"]], -1)
    torch.testing.assert_close(frame.code(whole)[:, [0, 1, 5, 6, 7]], before)
    assert torch.equal(frame.code(whole)[:, 2:5], whole[:, 2:5])
    frame.fit([frame.posterior(given)])
    torch.testing.assert_close((frame.origin, frame.unit), plain)


@pytest.mark.parametrize("kind", ["vae", "code"])
def test_a_finished_stage_has_codes_around_0_and_the_reconstructions_of_its_networks(kind, tmp_path):
    first = ub.train("beta-vae", data="sprites-small", z=3, steps=20, root=tmp_path, **SMALL)
    run = ub.refine(first, kind, z=2, steps=30, lr=1e-2, root=tmp_path, name="run", **SMALL)
    rows = split(run.dataset, run.config.training.split).train
    assert len(rows) <= MAX_ROWS_TO_FIT
    mean, log_variance = run.model.encode(run.dataset.images(rows))["z"].chunk(2, -1)
    torch.testing.assert_close(mean.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close((mean.square() + log_variance.exp()).mean(0), torch.ones(2), atol=1e-4, rtol=0)
    assert run.model.frame.origin.abs().max() > 0
    codes = run.encode(run.dataset.images(rows[:8]))
    made = run.decode(codes)
    tensors, facts = load_tensors(run.folder.model_path)
    plain = {name: tensor for name, tensor in tensors.items() if ".frame." not in name}
    save_tensors(run.folder.model_path, plain, facts)
    run.folder.write_json("status", {k: v for k, v in run.folder.read_json("status").items() if k != "content"})
    older = ub.load(run.path, device="cpu")
    assert torch.equal(older.model.frame.unit, torch.ones(2))
    moved = older.encode(run.dataset.images(rows[:8]))
    assert not torch.allclose(moved, codes, atol=1e-3)
    torch.testing.assert_close(older.decode(moved), made, atol=1e-5, rtol=1e-4)


def test_rows_are_evenly_spaced_and_no_more_than_asked_for():
    assert sum(len(part) for part in choose_rows_to_fit(torch.arange(10))) == 10
    for count in (MAX_ROWS_TO_FIT, MAX_ROWS_TO_FIT + 1, 3 * MAX_ROWS_TO_FIT + 5):
        chosen = torch.cat(choose_rows_to_fit(torch.arange(count)))
        assert len(chosen) <= MAX_ROWS_TO_FIT
        assert chosen[-1] > 0.9 * count - 4
