r"""Mutual information of latents and factors where every row's posterior is Normal: by quadrature, without sampling.

One latent has the density q(z) = 1/N sum_n N(z; mu_n, sigma_n^2), and together with a factor v the density
q(z, v=a) = 1/N sum_{n: v_n=a} N(z; mu_n, sigma_n^2). Then I(z; v) = H(z) + H(v) - H(z, v), and both entropies of z are
one-dimensional integrals, which the trapezoidal rule solves with an error that falls exponentially in the spacing.

The cost hardly depends on how narrow the narrowest posterior is. Rows are sorted into octaves of sigma; an octave
[s, 2s) is laid onto a grid of spacing s/2, where each row touches 58 points only. Sampled at s/2 such a density is
band-limited up to exp(-2 pi^2) = 3e-9, so the Fourier transform carries it over to the next finer grid.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from unbraid.errors import DataError
from unbraid.metrics.information.histogram import plogp
from unbraid.progress import progress
from unbraid.threads import one_thread

PER_SIGMA = 2
"""Grid points per standard deviation at which an octave is laid down."""

REFINEMENT = 4
"""How much finer the grid of the integral is: log q is less smooth than q where two components meet."""

REACH = 7.0
"""Standard deviations after which a component is cut off; 3e-12 of its mass lies beyond."""

HALF_WIDTH = math.ceil(REACH * 2 * PER_SIGMA)
"""Points on either side that a component touches, when its sigma is at the upper end of the octave."""

MOST_POINTS = 2**24
CHUNK_VALUES = 2**17
STRETCH = 128
"""Points whose components are added together on a GPU."""

STRETCH_ROWS = 2**16
MOST_STRETCHES = 2**11
DENSITY_VALUES = 2**25


class Information(NamedTuple):
    """I(z_j; v_k) [latents, factors] and H(z_j) in nats, and the spacing of each latent's grid; float64 on the CPU."""

    matrix: Tensor
    entropy: Tensor
    spacing: Tensor


class PosteriorMixture(NamedTuple):
    """Weighted components of one latent; each belongs to one or several classes [components, memberships]."""

    mean: Tensor
    std: Tensor
    weight: Tensor
    classes: Tensor


class QuadratureGrid(NamedTuple):
    """Periodic grids over one interval, the first with `points` points, each next one twice as fine."""

    low: float
    spacing: float
    points: int
    octaves: int

    @classmethod
    def over(cls, latent: str, mean: Tensor, std: Tensor) -> "QuadratureGrid":
        """Grids for all octaves of `std`, wide enough that no component wraps around."""
        from scipy.fft import next_fast_len

        narrow, wide = float(std.min()), float(std.max())
        octaves = math.floor(math.log2(wide / narrow)) + 1
        spacing = narrow / PER_SIGMA * 2.0 ** (octaves - 1)
        margin = (HALF_WIDTH + 2) * spacing
        low = float(mean.min()) - margin
        length = float(mean.max()) + margin - low
        wanted = math.ceil(length / spacing / 2)
        # On CUDA every new length is planned for a tenth of a second, so that latents had better share theirs.
        points = 2 * (1 << (wanted - 1).bit_length() if mean.is_cuda else next_fast_len(wanted, real=True))
        if points * 2 ** (octaves - 1) * REFINEMENT > MOST_POINTS:
            share = f"{narrow / length:.0e}"
            raise DataError(
                f"The narrowest posterior of {latent} is {share} of its range: too narrow for exact information."
            )
        return cls(low, spacing, points, octaves)

    @property
    def finest(self) -> float:
        """Spacing of the grid on which integrals are taken."""
        return self.spacing / 2 ** (self.octaves - 1) / REFINEMENT

    @property
    def finest_points(self) -> int:
        """Number of points of the grid on which integrals are taken."""
        return self.points * 2 ** (self.octaves - 1) * REFINEMENT


def integrate_information(
    means: Tensor, stds: Tensor, labels: Tensor, sizes: tuple[int, ...], names: tuple[str, ...]
) -> Information:
    """I(z_j; v_k) of all latents and factors; `labels` [rows, factors] counts from 0 up to `sizes`."""
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0).to(labels.device)
    classes, total = labels + starts, sum(sizes)
    counts = torch.bincount(classes.flatten(), minlength=total).double()
    rows, spacing = [], []
    with one_thread(), progress("mutual information", means.shape[1]) as bar:
        for j, latent in enumerate(names):
            mean, std = means[:, j].contiguous(), stds[:, j].contiguous()
            grid = QuadratureGrid.over(latent, mean, std)
            rows.append(_row(grid, _mixture(mean, std, classes, total), counts, sizes))
            spacing.append(grid.finest)
            bar.advance()
    matrix, entropy = (torch.stack(part).cpu() for part in zip(*rows, strict=True))
    return Information(matrix, entropy, torch.tensor(spacing, dtype=torch.float64))


def _row(
    grid: QuadratureGrid, mixture: PosteriorMixture, counts: Tensor, sizes: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """I(z; v_k) [factors] and H(z) of one latent."""
    rows = float(counts[: sizes[0]].sum())
    at_once = max(1, DENSITY_VALUES // grid.finest_points)
    joint, marginal = [], 0.0
    for first in range(0, len(counts), at_once):
        last = min(first + at_once, len(counts))
        density = _density(grid, mixture, first, last) / rows  # [classes, points]: q(z, v=a)
        joint.append(plogp(density).sum(-1) * grid.finest)
        if first < sizes[0]:  # the classes of one factor make up the whole
            marginal = marginal + density[: sizes[0] - first].sum(0)
    assert isinstance(marginal, Tensor)
    latent = plogp(marginal).sum() * grid.finest
    factor = plogp(counts / rows).split(sizes)
    pairs = zip(factor, torch.cat(joint).split(sizes), strict=True)
    information = torch.stack([latent + own.sum() - both.sum() for own, both in pairs])
    return information.clamp_min(0), latent  # rounding may say -1e-8


def _density(grid: QuadratureGrid, mixture: PosteriorMixture, first: int, last: int) -> Tensor:
    """Sums of components per class [last - first, finest points], float64."""
    octave = (mixture.std / mixture.std.min()).log2().floor().long().clamp(0, grid.octaves - 1)
    density = torch.zeros(last - first, grid.points, dtype=torch.float64, device=mixture.mean.device)
    for level in range(grid.octaves):
        if level:
            density = _refine(density, 2)
        chosen = (octave == grid.octaves - 1 - level).nonzero().squeeze(-1)
        _add(density, grid, grid.spacing / 2**level, PosteriorMixture(*(part[chosen] for part in mixture)), first)
    return _refine(density, REFINEMENT)


class Placed(NamedTuple):
    """Components on a grid: the point below each mean, the way from there to it, spacing / sigma, and height."""

    cell: Tensor
    fraction: Tensor
    scale: Tensor
    height: Tensor

    @classmethod
    def on(cls, grid: QuadratureGrid, spacing: float, mixture: PosteriorMixture) -> "Placed":
        """Where the components of a mixture lie on the grid of a given spacing."""
        place = (mixture.mean.double() - grid.low) / spacing
        scale = spacing / mixture.std.double()
        height = mixture.weight * scale / (spacing * math.sqrt(2 * math.pi))
        return cls(place.floor().long(), (place - place.floor()).float(), scale.float(), height.float())

    def at(self, offsets: Tensor) -> Tensor:
        """Density of each component [components, offsets] that many points away from its cell."""
        distance = (offsets - self.fraction[:, None]) * self.scale[:, None]
        return distance.square_().mul_(-0.5).exp_() * self.height[:, None]


def _add(density: Tensor, grid: QuadratureGrid, spacing: float, mixture: PosteriorMixture, first: int) -> None:
    """Lay components onto the grid, in place; classes outside of the density's rows are left out."""
    placed = Placed.on(grid, spacing, mixture)
    inside = (mixture.classes >= first) & (mixture.classes < first + len(density))
    target = torch.where(inside, mixture.classes - first, len(density))  # the row after the last one is dropped
    by_products = density.is_cuda and density.shape[1] <= STRETCH * MOST_STRETCHES
    (_add_by_products if by_products else _add_by_scattering)(density, placed, target)


def _add_by_scattering(density: Tensor, placed: Placed, target: Tensor) -> None:
    """Point by point, as many components at a time as fit a CPU's cache, or fill a GPU."""
    kept, points = density.shape
    flat = torch.zeros((kept + 1) * points, dtype=torch.float64, device=density.device)
    offsets = torch.arange(-HALF_WIDTH, HALF_WIDTH + 2, device=density.device)
    rows = max(1, CHUNK_VALUES * (128 if density.is_cuda else 1) // len(offsets))
    for *part, classes in zip(*(column.split(rows) for column in placed), target.split(rows), strict=True):
        some = Placed(*part)
        values = some.at(offsets).double().flatten()
        cells = some.cell[:, None] + offsets
        for column in classes.unbind(-1):
            flat.scatter_add_(0, (cells + column[:, None] * points).flatten(), values)
    density += flat[: kept * points].view(kept, points)


def _add_by_products(density: Tensor, placed: Placed, target: Tensor) -> None:
    """Neighbours together: (which class) times (density at every point of a stretch) is one matrix product.

    A GPU adds millions of numbers to the same few places one after the other, but multiplies matrices at full speed.
    """
    kept, points = density.shape
    order = placed.cell.argsort()
    placed, target = Placed(*(column[order] for column in placed)), target[order]
    stretch = placed.cell // STRETCH
    counts = torch.unique_consecutive(stretch, return_counts=True)
    start = 0
    for number, count in zip(*(part.tolist() for part in counts), strict=True):
        low = max(0, number * STRETCH - HALF_WIDTH)
        high = min(points, (number + 1) * STRETCH + HALF_WIDTH + 2)
        at = torch.arange(low, high, device=density.device)
        for begin in range(start, start + count, STRETCH_ROWS):
            rows = slice(begin, min(begin + STRETCH_ROWS, start + count))
            some, classes = Placed(*(column[rows] for column in placed)), target[rows]
            belongs = torch.zeros(len(classes), kept + 1, dtype=torch.float64, device=density.device)
            belongs.scatter_(1, classes, 1.0)
            values = some.at(at - some.cell[:, None]).double()  # [components, points of the stretch]
            if kept > 1:
                density[:, low:high] += belongs[:, :kept].T @ values
            else:  # a product with one row would take GPUs ten times as long
                density[:, low:high] += (belongs[:, :1] * values).sum(0)
        start += count


def _refine(density: Tensor, factor: int) -> Tensor:
    """The same band-limited periodic function on a grid `factor` times as fine."""
    points = density.shape[-1]
    spectrum = torch.fft.rfft(density)
    spectrum[..., -1] *= 0.5  # the highest frequency is its own mirror image only on the coarse grid
    return torch.fft.irfft(spectrum, n=points * factor) * factor


def _mixture(mean: Tensor, std: Tensor, classes: Tensor, total: int) -> PosteriorMixture:
    """One component per row, or one per different (mean, std) and class where that is much less."""
    one = torch.ones_like(mean, dtype=torch.float64)
    rows = PosteriorMixture(mean, std, one, classes)
    distinct, first = mean.unique(return_inverse=True)
    if len(distinct) * classes.shape[1] > len(mean):
        return rows
    widths, second = std.unique(return_inverse=True)
    pairs, component = (first * len(widths) + second).unique(return_inverse=True)
    if len(pairs) * total > classes.numel():
        return rows
    counts = torch.bincount((component[:, None] * total + classes).flatten(), minlength=len(pairs) * total)
    occurring = counts.nonzero().squeeze(-1)
    pair = pairs[occurring // total]
    merged = distinct[pair // len(widths)], widths[pair % len(widths)]
    return PosteriorMixture(*merged, counts[occurring].double(), (occurring % total)[:, None])
