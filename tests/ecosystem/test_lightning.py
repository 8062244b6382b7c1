"""The bridges to Lightning in docs/ecosystem.md."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import unbraid as ub
from tests.test_documents import blocks

lightning = pytest.importorskip("lightning")

SHAPE = (1, 8, 8)


def make_networks():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 6))
    return encoder, nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 64), nn.Unflatten(1, SHAPE))


def run_block(word, **variables):
    code = next(block for block in blocks("docs/ecosystem.md") if word in block)
    exec(compile(code, "docs/ecosystem.md", "exec"), variables)
    return variables


@pytest.fixture
def images():
    return torch.rand(40, *SHAPE, generator=torch.Generator().manual_seed(0))


def test_the_module_has_the_loss_of_the_objective_and_learns(images):
    torch.manual_seed(0)
    encoder, decoder = make_networks()
    made = run_block("LightningModule")["Disentangling"](encoder, decoder, SHAPE, 3, 40, "beta-vae", beta=4.0)
    made.log_dict = lambda terms: None  # there is no trainer yet
    torch.manual_seed(1)
    loss = made.training_step(images, 0)
    torch.manual_seed(1)
    mean, log_variance = encoder(images).chunk(2, -1)
    logits = decoder(mean + (log_variance / 2).exp() * torch.randn(40, 3))
    reconstruction = functional.binary_cross_entropy_with_logits(logits, images, reduction="sum") / 40
    kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 40
    assert float(loss.detach()) == pytest.approx(float((reconstruction + 4 * kl).detach()), rel=1e-5)
    del made.log_dict
    trainer = lightning.Trainer(
        max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(made, torch.utils.data.DataLoader(images, batch_size=20))
    assert {"reconstruction", "kl"} <= set(trainer.logged_metrics)
    assert float(trainer.logged_metrics["reconstruction"]) < float(reconstruction.detach())


def test_networks_of_a_module_train_here_and_take_their_weights_back(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = lightning.LightningModule()
    module.encoder, module.decoder = make_networks()
    train, few = ub.train, {"steps": 3, "batch": 20, "z": 3, "device": "cpu"}
    monkeypatch.setattr(ub, "train", lambda recipe, **settings: train(recipe, **{**settings, **few}), raising=False)
    run = run_block("load_state_dict", ub=ub, images=images.numpy(), module=module)["run"]
    with torch.no_grad():
        assert torch.equal(module.encoder(images).chunk(2, -1)[0], run.encode(images))
