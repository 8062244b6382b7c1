"""Training speed of a beta-TCVAE, ours against pythae and disent, interleaved in one run.

    python benchmarks/train.py --device cpu
    python benchmarks/train.py --device cuda --members 1 16 64 --precision f32 tf32 bf16

64x64x1 binary images, the convolutional network 32-32-64-64 k4 stride 2 + 256 with the same number of parameters on
every side, Bernoulli likelihood, Adam. The peers (`pip install pythae==0.1.2 disent==0.8.0`) read the same images
through their own data sets and run under their own trainers, in float32 as they are by default, with no worker
processes and with some; our ratio is taken against the faster of the two. A peer that cannot be imported is reported
as absent. What a step of each side contains is printed and stored. Only whole steps inside an epoch are timed, which
spares the peers the restart of their workers at its end.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from measure import NETWORK, Contender, Measure, Setting, StepLimit, Stopwatch, binary_images, ours, ratio
from torch import Tensor, nn

from unbraid.networks import decoder as decoders, encoder as encoders

SHAPE = (1, 64, 64)
BETA = 6.0
PEERS = ("pythae", "disent")
PYTHAE = (
    "BaseTrainer.train(): DataLoader over BaseDataset (float images in memory), BetaTCVAE with stratified sampling "
    "(its default), cross-entropy of sigmoid outputs, backward, Adam, loss.item(), NaN check and progress bar"
)
DISENT = (
    "lightning Trainer.fit(): DataLoader over DisentDataset (bytes in memory, ToImgTensorF32), BetaTcVae (closed-form "
    "KL and TC by weighted sampling), cross-entropy of logits, backward, Adam, its checks and log_dict; no logger, "
    "checkpoints or progress bar"
)


class Enough(Exception):  # noqa: N818 (it is no error)
    """Raised when the time of a measurement is up."""


def networks(z: int) -> tuple[nn.Module, nn.Module]:
    """Return our encoder and decoder for a peer to wrap."""
    encoder = encoders[NETWORK].make(SHAPE, {"mean": z, "log_variance": z})
    return encoder, decoders[NETWORK].make(z, SHAPE)


def make_pythae(setting: Setting, workers: int) -> tuple[Any, Any]:
    """Return pythae's trainer on its own data set, and a callback whose `watch` ends the training by `Enough`."""
    from pythae.data.datasets import BaseDataset
    from pythae.models import BetaTCVAE, BetaTCVAEConfig
    from pythae.models.base.base_utils import ModelOutput
    from pythae.models.nn import BaseDecoder, BaseEncoder
    from pythae.trainers import BaseTrainer, BaseTrainerConfig
    from pythae.trainers.training_callbacks import TrainingCallback

    encoder, decoder = networks(setting.z)

    class Encoder(BaseEncoder):
        def __init__(self) -> None:
            super().__init__()
            self.layers = encoder

        def forward(self, x: Tensor) -> ModelOutput:
            mean, log_variance = self.layers(x).chunk(2, dim=-1)
            return ModelOutput(embedding=mean, log_covariance=log_variance)

    class Decoder(BaseDecoder):
        def __init__(self) -> None:
            super().__init__()
            self.layers = decoder

        def forward(self, z: Tensor) -> ModelOutput:
            return ModelOutput(reconstruction=self.layers(z).sigmoid())

    class Clock(TrainingCallback):
        watch: Stopwatch | StepLimit

        def on_train_step_end(self, training_config: Any, **_: Any) -> None:
            if self.watch.tick():
                raise Enough

    images = torch.from_numpy(binary_images(setting.images)[:, None])
    model = BetaTCVAE(
        BetaTCVAEConfig(input_dim=SHAPE, latent_dim=setting.z, reconstruction_loss="bce", beta=BETA),
        Encoder(),
        Decoder(),
    )
    folder = tempfile.TemporaryDirectory()
    config = BaseTrainerConfig(
        output_dir=folder.name,
        per_device_train_batch_size=setting.batch,
        train_dataloader_num_workers=workers,
        learning_rate=1e-3,
        no_cuda=setting.device == "cpu",
    )
    clock = Clock()
    clock.folder = folder  # which lasts as long as the trainer
    return BaseTrainer(model, BaseDataset(images, torch.zeros(len(images))), None, config, [clock]), clock


def pythae(setting: Setting, workers: int) -> tuple[Measure, dict[str, Any]]:
    """Prepare pythae's side."""
    trainer, clock = make_pythae(setting, workers)

    def run(seconds: float) -> float:
        clock.watch = Stopwatch(setting.device, setting.batch, seconds)
        try:
            trainer.train()
        except Enough:
            return clock.watch.rate
        raise RuntimeError("training ended before the measurement")

    run(0.0)
    return run, {"parameters": _size(trainer.model), "step": PYTHAE, "workers": workers}


def disent(setting: Setting, workers: int) -> tuple[Measure, dict[str, Any]]:
    """Prepare disent's framework under Lightning, as in its README."""
    import lightning  # before the stand-in, which it would take for the whole

    stand_in = measure.stand_in_for_torchvision()
    from disent.dataset import DisentDataset
    from disent.dataset.data import ArrayDataset
    from disent.dataset.sampling import SingleSampler
    from disent.dataset.transform import ToImgTensorF32
    from disent.frameworks.vae import BetaTcVae
    from disent.model import AutoEncoder, DisentDecoder, DisentEncoder
    from torch.utils.data import DataLoader

    encoder, decoder = networks(setting.z)

    class Encoder(DisentEncoder):
        def __init__(self) -> None:
            super().__init__(x_shape=SHAPE, z_size=setting.z, z_multiplier=2)
            self.layers = encoder

        def encode(self, x: Tensor) -> Tensor:
            return self.layers(x)

    class Decoder(DisentDecoder):
        def __init__(self) -> None:
            super().__init__(x_shape=SHAPE, z_size=setting.z)
            self.layers = decoder

        def decode(self, z: Tensor) -> Tensor:
            return self.layers(z)

    class Clock(lightning.Callback):
        def __init__(self, watch: Stopwatch) -> None:
            self.watch = watch

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.should_stop or self.watch.tick()

    images = (binary_images(setting.images)[..., None] * 255).astype(np.uint8)
    data = DisentDataset(ArrayDataset(images), sampler=SingleSampler(), transform=ToImgTensorF32())
    loader = DataLoader(data, batch_size=setting.batch, shuffle=True, num_workers=workers)
    module = BetaTcVae(
        AutoEncoder(Encoder(), Decoder()),
        BetaTcVae.cfg(
            optimizer="adam", optimizer_kwargs={"lr": 1e-3}, recon_loss="bce", loss_reduction="mean_sum", beta=BETA
        ),
    )

    def run(seconds: float) -> float:
        watch = Stopwatch(setting.device, setting.batch, seconds)
        lightning.Trainer(
            max_steps=10**9,
            accelerator="cpu" if setting.device == "cpu" else "gpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[Clock(watch)],
        ).fit(module, loader)
        return watch.rate

    run(0.0)
    note = "; torchvision is absent, its to_tensor is replaced by numpy and torch" if stand_in else ""
    return run, {"parameters": _size(module), "step": DISENT + note, "workers": workers}


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def contenders(arguments: argparse.Namespace) -> list[Contender]:
    """Return our variants and those of the peers."""
    common = {"device": arguments.device, "batch": arguments.batch, "z": arguments.z, "images": arguments.images}
    makers = {"pythae": pythae, "disent": disent}
    sides = [
        Contender(f"{name}, {workers} workers", makers[name], (Setting(**common), workers))
        for name in arguments.peers
        for workers in arguments.workers
    ]
    for members in arguments.members:
        for precision in arguments.precision:
            setting = Setting(**common, precision=precision, members=members)
            sides.append(Contender(f"unbraid, {members} x {precision}", ours, (setting,)))
    return sides


def best(sides: list[Contender], peer: str) -> Contender | None:
    """Return the faster variant of a peer."""
    measured = [side for side in sides if side.name.startswith(peer) and side.readings]
    return max(measured, key=lambda side: side.rate, default=None)


def found(sides: list[Contender], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all results for JSON."""
    result: dict[str, Any] = measure.facts("train.py", arguments.device, [*PEERS, "lightning", "torchvision"])
    result |= {"network": NETWORK, "batch": arguments.batch, "z": arguments.z, "images": arguments.images}
    result["contenders"] = []
    for side in sides:
        row = side.summary()
        for peer in arguments.peers if side.make is ours else ():
            other = best(sides, peer)
            times = None if other is None else ratio(side, other)
            if times is not None:
                row[f"times {peer}"] = round(times, 2)
        result["contenders"].append(row)
    return result


def show(result: dict[str, Any], peers: list[str]) -> str:
    """Return the result as a table with notes."""
    rows, notes = [], {}
    for row in result["contenders"]:
        rounds = row.get("rounds", [])
        spread = f"{min(rounds):,.0f} to {max(rounds):,.0f}" if rounds else row.get("failed", "not measured")
        speed = f"{row['images_per_second']:,.0f}" if rounds else "-"
        times = [str(row.get(f"times {peer}", "")) for peer in peers]
        rows.append([row["name"], str(row.get("parameters", "")), speed, spread, *times])
        side = row["name"].partition(",")[0]
        notes |= {side: row["step"]} if "step" in row else {}
        notes |= {f"{row['name']} warned": "; ".join(row["warnings"])} if "warnings" in row else {}
    head = ["", "parameters", "images/s", "lowest to highest round", *(f"x {peer}" for peer in peers)]
    lines = [f"{side}: {note}." for side, note in notes.items()]
    return "\n\n".join([f"`{result['command']}`", measure.table(head, rows), *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--members", type=int, nargs="+", help="default: 1 on a CPU, 1 16 64 on CUDA")
    parser.add_argument("--precision", nargs="+", choices=["f32", "tf32", "bf16"], help="default: all that differ")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--z", type=int, default=10)
    parser.add_argument("--images", type=int, default=65_536, help="size of the data set")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--workers", type=int, nargs="+", help="of the peers' loaders; default: 0 2 on a CPU, 0 4 else")
    measure.add_arguments(parser, rounds=10)
    parser.add_argument("--out", type=Path, help="JSON; default: results/benchmarks/train-DEVICE.json")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    arguments.members = arguments.members or ([1, 16, 64] if cuda else [1])
    arguments.precision = arguments.precision or (["f32", "tf32", "bf16"] if cuda else ["f32", "bf16"])
    arguments.workers = arguments.workers or ([0, 4] if cuda else [0, 2])
    path = arguments.out or Path("results/benchmarks") / f"train-{arguments.device}.json"
    measure.set_threads(arguments.threads)
    sides = contenders(arguments)
    with measure.started(sides, arguments.at_once):
        for _ in measure.take_turns(sides, arguments.rounds, arguments.seconds):
            measure.write(path, found(sides, arguments))
    print(show(found(sides, arguments), arguments.peers))


if __name__ == "__main__":
    main()
