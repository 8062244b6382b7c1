"""Draw three codes of two factors and their scores: `python docs/images/make_turned.py` writes turned-codes.png."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import unbraid as ub

random = np.random.default_rng(0)
factors = random.integers(0, 10, (5000, 2))
perfect = (factors - 4.5) / 2.9
turned = perfect @ np.array([[1, 1], [-1, 1]]) / np.sqrt(2)
noise = random.normal(size=(5000, 2))

figure, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained", sharex=True, sharey=True)
for axis, (name, codes) in zip(axes, {"perfect": perfect, "turned": turned, "noise": noise}.items(), strict=True):
    mig = ub.metrics.mig(codes, factors).value
    print(f"{name:8} {mig:.2f}")
    axis.scatter(*codes[:1000].T, c=factors[:1000, 0], s=14, cmap="viridis")
    axis.set(title=f"{name}: MIG {mig:.2f}", xlabel="first latent", box_aspect=1)
axes[0].set_ylabel("second latent")
figure.savefig(Path(__file__).parent / "turned-codes.png", dpi=80)
