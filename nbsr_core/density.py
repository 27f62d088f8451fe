"""How close is this input to what the model has seen? A factor in (0, 1] on all evidence.

Evidence alone does not see the unknown: an expert is a linear map, and far from the data it extrapolates with full
confidence. So evidence is scaled by how plausible the oracle `h` is under the training features: near them the factor
is 1 and nothing changes, far from them it falls towards 0, alpha falls back to the prior and the vacuity rises to 1.
That makes the paper's Corollary 1 (unknown inputs elicit near-zero evidence) true by construction; strict positivity,
and with it Theorem 1, stays.

The distance is Mahalanobis to the nearest class mean, with one covariance for all classes. Directions that the
training data hardly uses count too, through one shared residual variance: that is where the unknown often shows.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nbsr_core.errors import InputError, NotFittedError


class DensityFactor(nn.Module):
    """`factor(h) = exp(-((d(h) - threshold) / spread)^2 / 2)` beyond the threshold, 1 within it.

    Threshold and spread come from training features that were kept out of the fit of means and covariance, so that
    they say how far *new* data of the same kind lies.

    Args:
        oracle_dim: size d of the oracle.
        directions: principal directions that get a variance of their own (at most d); the rest share one.
        normalise: project `h` to the unit sphere first (right for deep image features, whose length varies wildly).
        quantile: share of new in-distribution data that shall keep its evidence whole.
        floor: smallest factor. Not lower, or float32 would round the evidence of a doubted input to nothing.
    """

    def __init__(
        self,
        oracle_dim: int,
        *,
        directions: int | None = None,
        normalise: bool = False,
        quantile: float = 0.99,
        floor: float = 1e-6,
    ) -> None:
        super().__init__()
        directions = oracle_dim if directions is None else directions
        if not 1 <= directions <= oracle_dim:
            raise InputError(f"density directions must lie in 1..{oracle_dim} (the oracle's size), got {directions}")
        if not 0.5 <= quantile < 1:
            raise InputError(f"density quantile must lie in [0.5, 1), got {quantile}")
        if not 0 < floor < 1:
            raise InputError(f"density floor must lie in (0, 1), got {floor}")
        self.directions, self.normalise, self.quantile, self.floor = directions, normalise, quantile, floor
        self.register_buffer("whitening", torch.zeros(oracle_dim, oracle_dim))
        self.register_buffer("means", torch.zeros(0, oracle_dim))
        self.register_buffer("threshold", torch.tensor(float("nan")))
        self.register_buffer("spread", torch.tensor(float("nan")))
        self.whitening: Tensor
        self.means: Tensor
        self.threshold: Tensor
        self.spread: Tensor

    @property
    def fitted(self) -> bool:
        return self.means.shape[0] > 0

    @torch.no_grad()
    def fit(self, h: Float[Tensor, "N d"], y: Int[Tensor, " N"] | None = None) -> DensityFactor:
        """Learn where the training features lie. With labels, close means close to the features of *some* class."""
        self._check(h)
        if h.shape[0] < 20:
            raise InputError(f"a density factor needs at least 20 training features, got {h.shape[0]}")
        features = self._place(h.double())
        labels = torch.zeros(len(h), dtype=torch.int64, device=h.device) if y is None else y.long()
        kept_out = torch.arange(len(h), device=h.device) % 5 == 4
        self._fit_shape(features[~kept_out], labels[~kept_out])
        distance = self._distance(features[kept_out])
        median, threshold = torch.quantile(distance, torch.tensor([0.5, self.quantile], dtype=torch.float64)).tolist()
        self._fit_shape(features, labels)
        self.threshold.fill_(threshold)
        self.spread.fill_(max(threshold - median, 1e-3 * max(threshold, 1e-12)))
        return self

    def _fit_shape(self, features: Float[Tensor, "N d"], labels: Int[Tensor, " N"]) -> None:
        classes, index = labels.unique(return_inverse=True)
        sums = features.new_zeros(len(classes), features.shape[1]).index_add_(0, index, features)
        means = sums / index.bincount(minlength=len(classes)).unsqueeze(1)
        centred = features - means[index]
        variances, axes = torch.linalg.eigh(centred.T @ centred / len(features))
        variances, axes = variances.flip(0).clamp_min(0), axes.flip(1)
        # A direction that training never used must not be infinitely telling: it gets a small share of the total.
        smallest = variances.mean().clamp_min(1e-12) * 1e-3
        residual = variances[self.directions :]
        scale = variances.clone()
        if len(residual):
            scale[self.directions :] = residual.mean()
        whitening = axes / scale.clamp_min(smallest).sqrt()
        self.whitening = whitening.to(self.threshold.dtype)
        self.means = (means @ whitening).to(self.threshold.dtype)

    def distance(self, h: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
        """Mahalanobis distance of each oracle to the nearest class mean, divided by sqrt(d): about 1 on known data."""
        if not self.fitted:
            raise NotFittedError("the density factor was not fitted: call model.fit_density(features) first")
        self._check(h)
        return self._distance(self._place(h))

    def forward(self, h: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
        """The factor on all evidence, in [floor, 1]."""
        beyond = ((self.distance(h) - self.threshold) / self.spread).clamp_min(0)
        return torch.exp(-0.5 * beyond.square()).clamp_min(self.floor)

    def _place(self, h: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        return F.normalize(h, dim=-1) if self.normalise else h

    def _distance(self, features: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
        white = features.to(self.whitening.dtype) @ self.whitening
        squared = white.square().sum(-1, keepdim=True) - 2 * white @ self.means.T + self.means.square().sum(-1)
        nearest = squared.min(-1).values.clamp_min(1e-12)
        return (nearest / features.shape[1]).sqrt()

    def _check(self, h: Tensor) -> None:
        size = self.whitening.shape[0]
        if h.ndim != 2 or h.shape[1] != size:
            raise InputError(f"features must have shape [N, {size}], got {list(h.shape)}")

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: object) -> None:
        """The number of classes is learned: take the shape of the means from what is loaded."""
        means = state_dict.get(prefix + "means")
        if means is not None:
            self.means = self.means.new_empty(means.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)
