"""The effect of the coordinates of a second stage's latents: does c still decide if z is drawn from its prior?

python benchmarks/frame.py --seeds 3 --root runs/frame --out results/frame

A short MS-VAE on Cars3D, on a CPU, is scored in the fitted coordinates and in those of its networks; reconstructions
are the same in both (`unbraid.models.recentre`).
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import unbraid as ub
from unbraid import atomic
from unbraid.metrics import Evaluation, evaluate
from unbraid.models import StagedVAE
from unbraid.report import traversal

FIRST = {"data": "cars3d", "beta": 4, "z": 10, "batch": 64, "steps": 1000, "lr": 1e-3, "decay": "cosine"}
SECOND = {"z": 5, "batch": 64, "steps": 800, "lr": 1e-3, "decay": "cosine"}
NETWORKS = {"encoder.channels": 16, "decoder.channels": 16}
SCORES = ("cond/Y", "cond/X", "cond/Z-noise", "kl/closed-form", "reconstruction/l2")


def scores_of(run: ub.Run) -> dict[str, float]:
    """Score a run's model in its current coordinates; of the KL, return that of z."""
    seen = Evaluation(run.model, run.dataset, run.evaluation.rows)
    made = {score.name: score for score in evaluate(seen, SCORES, resamples=0)}
    own = made["kl/closed-form"].details["latents"]
    values = {name: score.value for name, score in made.items() if name != "kl/closed-form"}
    return {**values, "kl of z": sum(value for name, value in own.items() if name.startswith("z"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--root", type=Path, default=Path("runs/frame"))
    parser.add_argument("--out", type=Path, default=Path("results/frame"))
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for seed in range(arguments.seeds):
        first = ub.train("beta-tcvae", **FIRST, seed=seed, root=arguments.root, device="cpu")
        second = ub.refine(first, "vae", **SECOND, **NETWORKS, seed=seed, root=arguments.root)
        assert isinstance(second.model, StagedVAE)
        frame = second.model.frame
        facts = {"seed": seed, "origin": frame.origin.tolist(), "unit": frame.unit.tolist()}
        arguments.out.mkdir(parents=True, exist_ok=True)
        for coordinates in ("fitted", "networks"):
            if coordinates == "networks":
                with torch.no_grad():
                    frame.load_state_dict(
                        {"origin": torch.zeros_like(frame.origin), "unit": torch.ones_like(frame.unit)}
                    )
            rows.append({**facts, "coordinates": coordinates, **scores_of(second)})
            if seed == 0:
                latents = [f"z{number}" for number in range(SECOND["z"])]
                traversal(Evaluation(second.model, second.dataset, second.evaluation.rows), latents=latents).save(
                    arguments.out / f"{coordinates}.png"
                )
        atomic.write_text(arguments.out / "scores.json", json.dumps(rows, indent=2) + "\n")
    names = ["cond/Y", "cond/X", "cond/Z-noise", "kl of z", "reconstruction/l2"]
    print("| coordinates | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for kind in ("fitted", "networks"):
        of_kind = [[float(str(row[name])) for name in names] for row in rows if row["coordinates"] == kind]
        print(f"| {kind} | " + " | ".join(f"{value:.4g}" for value in np.mean(of_kind, axis=0)) + " |")


if __name__ == "__main__":
    main()
