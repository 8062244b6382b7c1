r"""Mutual information of factors and latents with Normal posteriors, by quadrature instead of sampling.

One latent has the density q(z) = 1/N sum_n N(z; mu_n, sigma_n^2), and together with a factor v the density
q(z, v=a) = 1/N sum_{n: v_n=a} N(z; mu_n, sigma_n^2). Then I(z; v) = H(z) + H(v) - H(z, v), and both entropies of z are
one-dimensional integrals. The error of the trapezoidal rule falls exponentially in the spacing.

The cost hardly depends on the narrowest posterior. Rows are sorted into octaves of sigma. The components of an octave
[s, 2s) are added on a grid of spacing s/2, where each touches only 58 points. Sampled at s/2 such a density is
band-limited up to exp(-2 pi^2) = 3e-9, so a Fourier transform interpolates it on the next finer grid.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unbraid.errors import DataError
from unbraid.metrics.information.stacked_histograms import plogp
from unbraid.progress import track
from unbraid.threads import one_thread

POINTS_PER_SIGMA = 2
"""Grid points per standard deviation when the components of an octave are added."""

REFINEMENT = 4
"""Factor by which the grid of the integral is finer: log q is less smooth than q where two components meet."""

REACH = 7.0
"""Standard deviations after which a component is cut off; 3e-12 of its mass lies beyond."""

HALF_WIDTH = math.ceil(REACH * 2 * POINTS_PER_SIGMA)
"""Points on either side that a component touches if its sigma is at the upper end of the octave."""

MAX_GRID_POINTS = 2**24
MAX_SCATTERED_VALUES = 2**17
MAX_DENSITY_VALUES = 2**25

STRETCH = 128
"""Grid points whose components a GPU adds in one matrix product."""

MAX_STRETCHES = 2**11
ROWS_PER_SUM = 512
"""Components that one float32 product adds up; the error of their sum stays near that of their densities."""

MAX_ROWS_PER_PRODUCT = 2**16


class Information(NamedTuple):
    """I(z_j; v_k) [latents, factors], H(z_j) [latents] in nats and each latent's grid spacing; float64 on the CPU."""

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
    """Periodic grids over one interval: the first has `points` points, each next one is twice as fine."""

    low: float
    spacing: float
    points: int
    octaves: int

    @classmethod
    def over(cls, latent: str, mean: Tensor, std: Tensor) -> "QuadratureGrid":
        """Return grids for all octaves of `std`, wide enough that no component wraps around."""
        from scipy.fft import next_fast_len

        narrow, wide = float(std.min()), float(std.max())
        octaves = math.floor(math.log2(wide / narrow)) + 1
        spacing = narrow / POINTS_PER_SIGMA * 2.0 ** (octaves - 1)
        margin = (HALF_WIDTH + 2) * spacing
        low = float(mean.min()) - margin
        length = float(mean.max()) + margin - low
        wanted = math.ceil(length / spacing / 2)
        # CUDA plans every new length for a tenth of a second, so latents should share lengths.
        points = 2 * (1 << (wanted - 1).bit_length() if mean.is_cuda else next_fast_len(wanted, real=True))
        if points * 2 ** (octaves - 1) * REFINEMENT > MAX_GRID_POINTS:
            share = f"{narrow / length:.0e}"
            raise DataError(f"The narrowest posterior of {latent} is {share} of its range: too narrow for quadrature.")
        return cls(low, spacing, points, octaves)

    @property
    def finest(self) -> float:
        """Spacing of the grid of the integrals."""
        return self.spacing / 2 ** (self.octaves - 1) / REFINEMENT

    @property
    def finest_points(self) -> int:
        """Number of points of the grid of the integrals."""
        return self.points * 2 ** (self.octaves - 1) * REFINEMENT


def integrate_information(
    means: Tensor, stds: Tensor, labels: Tensor, sizes: tuple[int, ...], names: tuple[str, ...]
) -> Information:
    """Return I(z_j; v_k) of all latents and factors; `labels` [rows, factors] are numbers below `sizes`."""
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0).to(labels.device)
    classes, total = labels + starts, sum(sizes)
    counts = torch.bincount(classes.flatten(), minlength=total).double()
    rows, spacing = [], []
    with one_thread():
        for j, latent in enumerate(track("mutual information", names)):
            mean, std = means[:, j].contiguous(), stds[:, j].contiguous()
            grid = QuadratureGrid.over(latent, mean, std)
            rows.append(_integrate(grid, _merge_equal_rows(mean, std, classes, total), counts, sizes))
            spacing.append(grid.finest)
    matrix, entropy = (torch.stack(part).cpu() for part in zip(*rows, strict=True))
    return Information(matrix, entropy, torch.tensor(spacing, dtype=torch.float64))


def _integrate(
    grid: QuadratureGrid, mixture: PosteriorMixture, counts: Tensor, sizes: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return I(z; v_k) [factors] and H(z) of one latent."""
    rows = float(counts[: sizes[0]].sum())
    step = max(1, MAX_DENSITY_VALUES // grid.finest_points)
    joint, marginal = [], 0.0
    for first in range(0, len(counts), step):
        last = min(first + step, len(counts))
        density = _sum_components(grid, mixture, first, last) / rows  # [classes, points]: q(z, v=a)
        joint.append(plogp(density).sum(-1) * grid.finest)
        if first < sizes[0]:  # the classes of one factor make up the whole
            marginal = marginal + density[: sizes[0] - first].sum(0)
    assert isinstance(marginal, Tensor)
    latent = plogp(marginal).sum() * grid.finest
    factor = plogp(counts / rows).split(sizes)
    pairs = zip(factor, torch.cat(joint).split(sizes), strict=True)
    information = torch.stack([latent + alone.sum() - both.sum() for alone, both in pairs])
    return information.clamp_min(0), latent  # rounding may say -1e-8


def _sum_components(grid: QuadratureGrid, mixture: PosteriorMixture, first: int, last: int) -> Tensor:
    """Return the sums of components per class [last - first, finest points] for classes from `first` to `last`."""
    octave = (mixture.std / mixture.std.min()).log2().floor().long().clamp(0, grid.octaves - 1)
    density = torch.zeros(last - first, grid.points, dtype=torch.float64, device=mixture.mean.device)
    for level in range(grid.octaves):
        if level:
            density = _refine(density, 2)
        chosen = (octave == grid.octaves - 1 - level).nonzero().squeeze(-1)
        _add(density, grid, grid.spacing / 2**level, PosteriorMixture(*(part[chosen] for part in mixture)), first)
    return _refine(density, REFINEMENT)


class PlacedComponents(NamedTuple):
    """Components on a grid: the point below each mean, the distance from it, spacing / sigma, and height."""

    cell: Tensor
    fraction: Tensor
    scale: Tensor
    height: Tensor

    @classmethod
    def on(cls, grid: QuadratureGrid, spacing: float, mixture: PosteriorMixture) -> "PlacedComponents":
        place = (mixture.mean.double() - grid.low) / spacing
        scale = spacing / mixture.std.double()
        height = mixture.weight * scale / (spacing * math.sqrt(2 * math.pi))
        return cls(place.floor().long(), (place - place.floor()).float(), scale.float(), height.float())

    def at(self, offsets: Tensor) -> Tensor:
        """Return the density of each component [components, offsets] at points relative to its cell."""
        distance = (offsets - self.fraction[:, None]) * self.scale[:, None]
        return distance.square_().mul_(-0.5).exp_() * self.height[:, None]


def _add(density: Tensor, grid: QuadratureGrid, spacing: float, mixture: PosteriorMixture, first: int) -> None:
    """Add components to a density [classes from `first`, points] in place; other classes are dropped."""
    placed = PlacedComponents.on(grid, spacing, mixture)
    inside = (mixture.classes >= first) & (mixture.classes < first + len(density))
    target = torch.where(inside, mixture.classes - first, len(density))  # a row after the last one, which is dropped
    by_products = density.is_cuda and density.shape[1] <= STRETCH * MAX_STRETCHES
    (_add_by_products if by_products else _add_by_scattering)(density, placed, target)


def _add_by_scattering(density: Tensor, placed: PlacedComponents, target: Tensor) -> None:
    """Add point by point, with as many components at a time as fit a CPU's cache or fill a GPU."""
    classes, points = density.shape
    flat = torch.zeros((classes + 1) * points, dtype=torch.float64, device=density.device)
    offsets = torch.arange(-HALF_WIDTH, HALF_WIDTH + 2, device=density.device)
    rows = max(1, MAX_SCATTERED_VALUES * (128 if density.is_cuda else 1) // len(offsets))
    for *part, targets in zip(*(column.split(rows) for column in placed), target.split(rows), strict=True):
        chunk = PlacedComponents(*part)
        values = chunk.at(offsets).double().flatten()
        cells = chunk.cell[:, None] + offsets
        for column in targets.unbind(-1):
            flat.scatter_add_(0, (cells + column[:, None] * points).flatten(), values)
    density += flat[: classes * points].view(classes, points)


def _add_by_products(density: Tensor, placed: PlacedComponents, target: Tensor) -> None:
    """Add neighbours together: one-hot classes times densities on a stretch of points is one matrix product.

    A GPU adds millions of numbers to the same few places one by one, but multiplies matrices at full speed.
    """
    classes, points = density.shape
    order = placed.cell.argsort()
    placed, target = PlacedComponents(*(column[order] for column in placed)), target[order]
    stretch = placed.cell // STRETCH
    counts = torch.unique_consecutive(stretch, return_counts=True)
    start = 0
    for number, count in zip(*(part.tolist() for part in counts), strict=True):
        low = max(0, number * STRETCH - HALF_WIDTH)
        high = min(points, (number + 1) * STRETCH + HALF_WIDTH + 2)
        at = torch.arange(low, high, device=density.device)
        for begin in range(start, start + count, MAX_ROWS_PER_PRODUCT):
            rows = slice(begin, min(begin + MAX_ROWS_PER_PRODUCT, start + count))
            chunk, targets = PlacedComponents(*(column[rows] for column in placed)), target[rows]
            density[:, low:high] += _multiply(targets, chunk.at(at - chunk.cell[:, None]), classes)
        start += count


def _multiply(targets: Tensor, values: Tensor, classes: int) -> Tensor:
    """Return sums of values [components, points] by class [classes, points] in float64.

    Products add up `ROWS_PER_SUM` components in float32, which a GPU multiplies far faster than float64.
    """
    if classes == 1:  # a product with one row takes GPUs ten times as long
        return ((targets == 0).any(1, keepdim=True) * values).sum(0, keepdim=True, dtype=torch.float64)
    missing = -len(values) % ROWS_PER_SUM
    one_hot = values.new_zeros(len(values) + missing, classes + 1)
    one_hot[: len(values)].scatter_(1, targets, 1.0)
    values = F.pad(values, (0, 0, 0, missing)).unflatten(0, (-1, ROWS_PER_SUM))
    weights = one_hot[:, :classes].unflatten(0, (-1, ROWS_PER_SUM)).transpose(1, 2)
    return (weights @ values).sum(0, dtype=torch.float64)


def _refine(density: Tensor, factor: int) -> Tensor:
    """Return a band-limited periodic function on a grid that is `factor` times as fine."""
    points = density.shape[-1]
    spectrum = torch.fft.rfft(density)
    spectrum[..., -1] *= 0.5  # the highest frequency is its own mirror image only on the coarse grid
    return torch.fft.irfft(spectrum, n=points * factor) * factor


def _merge_equal_rows(mean: Tensor, std: Tensor, classes: Tensor, total: int) -> PosteriorMixture:
    """Return one component per row, or one per different (mean, std) and class if they are far fewer."""
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
