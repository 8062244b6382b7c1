r"""The evidence lower bound and its terms, in nats; each name states the estimator.

    ELBO = E[log p(x|z)] - E_n KL(q(z|x_n) || p(z)),    E_n KL = MI + TC + dimension-wise KL  (chen2018, eq. 3)

`exact` sums log q(z) and log q(z_d) over every row of the evaluation; the expectation over z is a Monte Carlo mean with
a confidence interval. `stratified` estimates log q(z) from batches, as training does; it saturates for narrow
posteriors. On a held-out split q(z) is the aggregate posterior of the held-out rows. The mutual information I(n; z) of
a row's index and its code is at most the logarithm of the number of rows.
"""

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from unbraid.density import Aggregate, batch_aggregate, exact_aggregate
from unbraid.density.estimators import can_fuse
from unbraid.latents import Space
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric, metric_protocol
from unbraid.metrics.intervals import ALL_ROWS, EXACT, mean_interval, no_interval, spread_at
from unbraid.objectives.decomposition import divergences, total_correlation_names, total_correlations
from unbraid.progress import track
from unbraid.types import Output

SAMPLES_PER_CHUNK = {"cpu": 64, "cuda": 4096}
"""Samples whose densities under all rows are computed between two updates of the progress bar."""

SAMPLED = ("posterior", "latent density")
CLOSED = (*SAMPLED, "closed form")


class SampledTerms(NamedTuple):
    """Terms by name, each with one value per row, or per batch if the rows of a batch share an estimate."""

    values: dict[str, Tensor]
    rows: int

    def score(self, term: str, name: str, protocol: str, covers: str = ALL_ROWS) -> Score:
        """Return the mean with its 95% interval by Student's t."""
        values = self.values[term].cpu().double().numpy()
        interval = mean_interval(values)
        covers = covers if interval else no_interval("it needs two batches of rows")
        return Score(name, protocol, float(values.mean()), self.rows, interval, covers=covers)


@metric("reconstruction/nats", reference="kingma2014", needs=("posterior", "likelihood"))
def reconstruction(evaluation: Evaluation, *, samples: int = 10_000) -> Score:
    """-E[log p(x|z)], summed over pixels, one posterior sample per row."""
    return _reconstruct(evaluation, samples).score("reconstruction", "reconstruction", "nats")


@metric("kl/closed-form", reference="kingma2014", needs=CLOSED, bounds=(0, math.inf), deterministic=True)
def kl(evaluation: Evaluation) -> Score:
    """E_n KL(q(z|x_n) || p(z)) over all rows, in closed form.

    `details` holds the KL of each latent; they add up to the value if posterior and prior are factorised.
    """
    each, posterior = compute_latent_kl(evaluation), evaluation.posterior
    with torch.no_grad():  # a closed form needs no values
        whole = evaluation.space.joint_kl(posterior, evaluation.model.prior_of(posterior), posterior)
    value = float(_to_doubles(whole).mean())
    details = {"latents": dict(zip(evaluation.space.leaf_names(), each.tolist(), strict=True))}
    return Score("kl", "closed-form", value, len(evaluation), (value, value), details=details, covers=EXACT)


@metric("elbo/closed-form", reference="kingma2014", needs=(*CLOSED, "likelihood"))
def elbo(evaluation: Evaluation, *, samples: int = 10_000) -> Score:
    """E[log p(x|z)] - E_n KL(q(z|x_n) || p(z)), the KL in closed form."""
    loss, divergence = reconstruction(evaluation, samples=samples), kl(evaluation)
    interval = loss.interval and (-loss.interval[1] - divergence.value, -loss.interval[0] - divergence.value)
    return replace(loss, metric="elbo", protocol="closed-form", value=-loss.value - divergence.value, interval=interval)


@metric("kl/sampled", reference="kingma2014", needs=SAMPLED)
def kl_sampled(evaluation: Evaluation, *, samples: int = 10_000) -> Score:
    """E[log q(z|x) - log p(z)], one posterior sample per row, for any latents."""
    return _compute_log_ratios(evaluation, samples).score("kl", "kl", "sampled")


@metric("elbo/sampled", reference="kingma2014", needs=(*SAMPLED, "likelihood"))
def elbo_sampled(evaluation: Evaluation, *, samples: int = 10_000) -> Score:
    """E[log p(x|z) + log p(z) - log q(z|x)], one posterior sample per row, for any latents."""
    loss, ratio = _reconstruct(evaluation, samples), _compute_log_ratios(evaluation, samples)
    both = -loss.values["reconstruction"] - ratio.values["kl"]
    return SampledTerms({"elbo": both}, loss.rows).score("elbo", "elbo", "sampled")


def compute_row_bounds(evaluation: Evaluation, protocol: str, *, samples: int = 10_000) -> Tensor:
    """Return the values [rows] whose mean is the ELBO of a protocol; models with equal seeds have the same rows.

    The KL in closed form is that of all rows, the same number in each value.
    """
    loss = _reconstruct(evaluation, samples).values["reconstruction"].cpu().double()
    if protocol == "closed-form":
        return -loss - kl(evaluation).value
    return -loss - _compute_log_ratios(evaluation, samples).values["kl"].cpu().double()


exact_metric = partial(metric_protocol, reference="chen2018", needs=SAMPLED)
stratified_metric = partial(metric_protocol, reference="esmaeili2018", needs=SAMPLED)


@exact_metric("mi/exact", "I(n; z) = E[log q(z|x) - log q(z)], q(z) over all rows.")
@exact_metric("tc/exact", "TC = E[log q(z) - sum_d log q(z_d)], q over all rows.")
@exact_metric("dimension-kl/exact", "sum_d KL(q(z_d) || p(z_d)), q over all rows.")
def exact(evaluation: Evaluation, family: str, *, samples: int = 1_024) -> list[Score]:
    return _score_terms(evaluation, _compute_exact(evaluation, samples), family, "exact")


@stratified_metric("mi/stratified", "I(n; z) with q(z) estimated from batches.")
@stratified_metric("tc/stratified", "TC with q(z) and q(z_d) estimated from batches.")
@stratified_metric("dimension-kl/stratified", "sum_d KL(q(z_d) || p(z_d)) with q(z_d) estimated from batches.")
def stratified(evaluation: Evaluation, family: str, *, batch: int = 256, batches: int = 16) -> list[Score]:
    return _score_terms(evaluation, _compute_stratified(evaluation, batch, batches), family, "stratified")


def compute_latent_kl(evaluation: Evaluation) -> Tensor:
    """Return the KL of each leaf [leaves], mean over all rows: in closed form, or at one draw if a block has none.

    A mixture of experts enters by its moments: the result ranks latents but is no term of a bound.
    """

    def compute() -> Tensor:
        space, posterior = evaluation.space, evaluation.posterior
        rows = torch.arange(len(evaluation), device=evaluation.rows.device)
        values = posterior if space.closed_form else evaluation.draw_values(rows)  # a closed form ignores them
        with torch.no_grad():
            return _to_doubles(space.kl(posterior, evaluation.model.prior_of(posterior), values)).mean(0).cpu()

    return evaluation.compute_once("latent_kl", compute)


def _to_doubles(values: Tensor) -> Tensor:
    """Return values in float64, on their device if it knows that type."""
    return values.double() if values.device.type in ("cpu", "cuda") else values.cpu().double()


def _reconstruct(evaluation: Evaluation, samples: int) -> SampledTerms:
    """Return -log p(x|z) of each chosen row."""

    def compute() -> SampledTerms:
        model, losses = evaluation.model, []
        check_at_least(2, samples=samples)
        rows = evaluation.choose(samples)
        with torch.no_grad():
            for part in track("reconstruction", rows.split(min(evaluation.pass_size, 1024))):
                code = evaluation.draw_codes(part)
                losses.append(-model.log_likelihood(evaluation.dataset, evaluation.rows[part], code))
        return SampledTerms({"reconstruction": torch.cat(losses)}, len(rows))

    return evaluation.compute_once(("reconstruction", samples), compute)


def _compute_log_ratios(evaluation: Evaluation, samples: int) -> SampledTerms:
    """Return log q(z|x) - log p(z) at one draw of each chosen row, the rows of `_reconstruct`."""
    check_at_least(2, samples=samples)
    rows, space = evaluation.choose(samples), evaluation.space
    posterior, values = evaluation.encode_posterior(rows), evaluation.draw_values(rows)
    with torch.no_grad():
        prior = space.prior_levels(evaluation.model.prior_of(posterior), values)[0]
        return SampledTerms({"kl": space.joint_density(posterior, values) - prior}, len(rows))


def _compute_exact(evaluation: Evaluation, samples: int) -> SampledTerms:
    """Return the terms of each sampled row under the aggregate posterior of all rows."""

    def compute() -> SampledTerms:
        check_at_least(2, samples=samples)
        rows, space = evaluation.choose(samples), evaluation.space
        parts, posterior = [], _widen(space, evaluation.posterior)
        with torch.no_grad():
            for part in track("aggregate posterior", rows.split(SAMPLES_PER_CHUNK.get(rows.device.type, 64))):
                sample = _widen(space, evaluation.draw_values(part))
                parts.append(exact_aggregate(space, posterior, sample).levels)
        levels = tuple(torch.cat(level).unsqueeze(-2) for level in zip(*parts, strict=True))
        return _compute_terms(
            evaluation, rows[:, None], Aggregate(levels)
        )  # each row as a batch of one: no mean is taken

    return evaluation.compute_once(("exact", samples), compute)


def _compute_stratified(evaluation: Evaluation, batch: int, batches: int) -> SampledTerms:
    """Return the terms of several disjoint batches, as means over each batch."""

    def compute() -> SampledTerms:
        check_at_least(2, batch=batch)
        check_at_least(1, batches=batches)
        size = min(batch, len(evaluation))
        count = min(batches, len(evaluation) // size)
        rows, space = evaluation.choose(size * count).view(count, size), evaluation.space
        posterior = _widen(space, evaluation.encode_posterior(rows))
        with torch.no_grad():
            sample = _widen(space, evaluation.draw_values(rows))
            aggregate = batch_aggregate(space, posterior, sample, "stratified", len(evaluation))
        return _compute_terms(evaluation, rows, aggregate)

    return evaluation.compute_once(("stratified", batch, batches), compute)


def _widen(space: Space, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return float64 on a GPU if the fused kernels cannot be used: as fast there, and more exact."""
    if can_fuse(space, tensors.values()):
        return tensors
    return {name: tensor.double() if tensor.is_cuda else tensor for name, tensor in tensors.items()}


def _compute_terms(evaluation: Evaluation, rows: Tensor, aggregate: Aggregate) -> SampledTerms:
    """Return MI, TC and dimension-wise KL of rows [batches, batch], one value per batch."""
    space = evaluation.space
    posterior = evaluation.encode_posterior(rows)
    out = Output(posterior, evaluation.model.prior_of(posterior), evaluation.draw_values(rows), {})
    with torch.no_grad():
        values = {**divergences(out, space, aggregate), **total_correlations(space, aggregate)}
    values["tc"] = torch.stack([values[name] for name in total_correlation_names(space)]).sum(0)
    return SampledTerms(values, rows.numel())


def _score_terms(evaluation: Evaluation, sampled: SampledTerms, family: str, protocol: str) -> list[Score]:
    """Return the score of a term; the total correlation of grouped latents has one more score for each level."""
    names = {family.removesuffix("-kl"): family}
    if family == "tc":
        levels = [name for name in total_correlation_names(evaluation.space) if name != "tc"]
        names |= {name: name.replace("_", "-") for name in levels}
    covers = ALL_ROWS if protocol == "exact" else spread_at(sampled.rows)  # few rows in a batch bias q(z)
    return [sampled.score(term, name, protocol, covers) for term, name in names.items()]
