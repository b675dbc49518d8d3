"""Scaling laws fitted with intervals: head counts, which are rounded up, and parameter counts, which are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import optimize, special, stats

LEAST_POINTS = 4
LEAST_RATIO = 4.0
STEEPEST = 20.0
CONFIDENCE = 0.95

Reason = Literal["too few points", "too little range", "no bounded point", "exponent not bounded", "not positive"]


class FitRefused(ValueError):
    """The data cannot carry a fit; `reason` says why, the message says by how much."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@dataclass(frozen=True)
class Fit:
    """A law y = coefficient * x^exponent.

    Attributes:
        exponent, low, high: estimate and 95 % interval.
        coefficient: at the estimate.
        scatter: standard deviation of log y about the law.
        points: number of data.
        identified: for rounded data, the exponents that reproduce every datum without any noise;
            None if there are none, or for data that are not rounded.
    """

    exponent: float
    low: float
    high: float
    coefficient: float
    scatter: float
    points: int
    identified: tuple[float, float] | None = None

    def covers(self, exponent: float, slack: float = 1e-9) -> bool:
        """Whether the interval contains `exponent`."""
        return self.low - slack <= exponent <= self.high + slack

    def __str__(self) -> str:
        return f"{self.exponent:.3f} [{self.low:.3f}, {self.high:.3f}]"


def _check(x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]) -> None:
    if len(np.unique(x)) < LEAST_POINTS:
        raise FitRefused("too few points", f"{len(np.unique(x))} distinct sizes, at least {LEAST_POINTS} are needed")
    if (x <= 0).any() or (y <= 0).any():
        raise FitRefused("not positive", "a power law needs positive sizes and values")
    if x.max() / x.min() < LEAST_RATIO:
        raise FitRefused(
            "too little range",
            f"sizes span a factor {x.max() / x.min():.2f}, at least {LEAST_RATIO:g} is needed",
        )


def fit_power_law(
    sizes: Sequence[float], values: Sequence[float], reference: Sequence[float] | None = None,
    reference_exponent: float = 0.0,
) -> Fit:  # fmt: skip
    """Least squares of log y on log x, with the exact interval of the normal model (Student's t).

    Args:
        reference, reference_exponent: an exact finite-size formula f(x) and its asymptotic exponent.
            If given, log f(x) - reference_exponent * log x is taken off log y first, so that the
            estimate is the asymptotic exponent of the data if they bend as the formula does.

    Raises:
        FitRefused: with fewer than four sizes, or sizes within a factor of four.
    """
    x, y = np.asarray(sizes, float), np.asarray(values, float)
    _check(x, y)
    log_x, log_y = np.log(x), np.log(y)
    if reference is not None:
        log_y = log_y - (np.log(np.asarray(reference, float)) - reference_exponent * log_x)
    slope, intercept = np.polyfit(log_x, log_y, 1)
    residual = log_y - intercept - slope * log_x
    freedom = len(x) - 2
    scatter = float(np.sqrt((residual**2).sum() / freedom))
    half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * scatter / np.sqrt(((log_x - log_x.mean()) ** 2).sum())
    return Fit(float(slope), float(slope - half), float(slope + half), float(np.exp(intercept)), scatter, len(x))


def fit_ceiling_law(sizes: Sequence[float], above: Sequence[float], upto: Sequence[float]) -> Fit:
    """Fit thresholds known only to lie in an interval, as integer head counts are.

    Model: log h_i = log c + a log x_i + s e_i with e_i ~ N(0, 1), and the datum is
    above_i < h_i <= upto_i. A head count H whose neighbour H - 1 fails is (H - 1, H]; if the largest
    failing count tried is F, (F, H]; if none passed, (F, inf].

    The estimate is the middle of the exponents of largest likelihood. The interval collects every a
    whose likelihood, maximised over c and s, is not significantly lower: the ratio test with its
    threshold for small samples, n log(1 + t^2/(n-2)), which is exact for unrounded normal data.

    Raises:
        FitRefused: as `fit_power_law`, when no point is bounded from above, or when the exponent is not.
    """
    x, low, high = (np.asarray(values, float) for values in (sizes, above, upto))
    if not np.isfinite(high).any():
        raise FitRefused("no bounded point", "no size was solved by any head count tried")
    _check(x, high)
    log_x = np.log(x)
    with np.errstate(divide="ignore"):
        bottom, top = np.log(low), np.log(high)
    n = len(x)
    t = stats.t.ppf((1 + CONFIDENCE) / 2, n - 2)
    drop = 0.5 * n * np.log1p(t**2 / (n - 2))

    identified = _identified(log_x, bottom, top)
    if identified is None:
        middle = np.where(np.isfinite(top), (np.maximum(bottom, top - np.log(2)) + top) / 2, bottom)
        start = float(np.polyfit(log_x, middle, 1)[0])
        found = optimize.minimize_scalar(
            lambda a: -_profile(a, log_x, bottom, top)[0], bracket=(start - 0.1, start + 0.1), tol=1e-6
        )
        estimate, best = float(found.x), -float(found.fun)
        inside = (estimate, estimate)
    else:
        # Every identified exponent has likelihood 1 as the scatter goes to 0.
        inside, estimate, best = identified, sum(identified) / 2, 0.0

    def excess(a: float) -> float:
        return best - _profile(a, log_x, bottom, top)[0] - drop

    edges = []
    for edge, direction in ((inside[0], -1.0), (inside[1], 1.0)):
        if excess(edge) >= 0:
            # The identified range is a sliver that a finite scatter cannot resolve: it is the interval.
            edges.append(edge)
            continue
        step = 0.02
        while excess(edge + direction * step) < 0:
            step *= 2
            if step > STEEPEST:
                raise FitRefused("exponent not bounded", f"exponents beyond {STEEPEST:g} fit these counts as well")
        edges.append(float(optimize.brentq(excess, edge, edge + direction * step, xtol=1e-5)))
    _, shift, scatter = _profile(estimate, log_x, bottom, top)
    return Fit(estimate, edges[0], edges[1], float(np.exp(shift)), scatter, n, identified)


LEAST_SCATTER = 1e-3
_UNBOUNDED = 3
"""scipy's status of a linear program without a finite optimum."""


def _identified(log_x: np.ndarray, bottom: np.ndarray, top: np.ndarray) -> tuple[float, float] | None:
    """Range of exponents a for which some c puts every log c + a log x_i into (bottom_i, top_i]."""
    rows, limits = [], []
    for value, lower, upper in zip(log_x, bottom, top, strict=True):
        if np.isfinite(upper):
            rows.append([value, 1.0])
            limits.append(upper)
        if np.isfinite(lower):
            rows.append([-value, -1.0])
            limits.append(-lower)
    ends = []
    for sign in (1.0, -1.0):
        found = optimize.linprog([sign, 0.0], A_ub=rows, b_ub=limits, bounds=[(None, None)] * 2, method="highs")
        if found.status == _UNBOUNDED:
            raise FitRefused("exponent not bounded", "these counts are reproduced by arbitrarily steep laws")
        if found.status != 0:
            return None
        ends.append(float(found.x[0]))
    return ends[0], ends[1]


def _profile(a: float, log_x: np.ndarray, bottom: np.ndarray, top: np.ndarray) -> tuple[float, float, float]:
    """Largest log-likelihood at exponent a over the shift log c and the scatter; with their values."""
    lower, upper = bottom - a * log_x, top - a * log_x

    def negative(shift_scatter: np.ndarray) -> float:
        shift, scatter = shift_scatter[0], max(float(np.exp(shift_scatter[1])), LEAST_SCATTER)
        lo, hi = (lower - shift) / scatter, (upper - shift) / scatter
        # log(Phi(hi) - Phi(lo)) without cancellation: reflect intervals that lie in the upper tail.
        flip = lo > 0
        lo, hi = np.where(flip, -hi, lo), np.where(flip, -lo, hi)
        log_hi, log_lo = special.log_ndtr(hi), special.log_ndtr(lo)
        return -float((log_hi + np.log1p(-np.exp(np.minimum(log_lo - log_hi, -1e-300)))).sum())

    widest, tightest = lower[np.isfinite(lower)], upper[np.isfinite(upper)]
    centre = (widest.max(initial=-np.inf) + tightest.min()) / 2 if len(widest) else tightest.min() - 0.5
    results = []
    for scatter in (np.log(2 * LEAST_SCATTER), np.log(0.05), np.log(0.3)):
        found = optimize.minimize(
            negative,
            [centre, scatter],
            method="Nelder-Mead",
            options={"xatol": 1e-5, "fatol": 1e-7, "maxiter": 400},
        )
        results.append((float(found.fun), float(found.x[0]), max(float(np.exp(found.x[1])), LEAST_SCATTER)))
    value, shift, scatter = min(results)
    return -value, shift, scatter
