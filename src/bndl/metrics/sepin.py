r"""SEPIN@k (Do & Tran 2020): how much each feature says about an image that no other feature says.

The conditional information of feature i is a difference of two InfoNCE bounds on the similarity of two augmented views,

.. math:: I(x; \theta_i \mid \theta_{\neq i}) \approx \mathrm{NCE}(s) - \mathrm{NCE}(s_{-i}), \qquad
    s_{-i} = \frac{\langle u, v\rangle - u_i v_i}{\sqrt{(|u|^2 - u_i^2)(|v|^2 - v_i^2)}}

with the similarity of all features and of all but one. It is an estimate, not a bound: it can be negative, and it depends
on the temperature and on the number of negatives, so compare figures that share both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bndl.convert import find_layer, find_linear
from bndl.errors import InputError
from bndl.features import Head, evaluating, features_of, iterate, split_batch
from bndl.layer import DecisionLayer
from bndl.progress import track

if TYPE_CHECKING:
    from bndl.data.sets import LabelledSet

__all__ = ["Sepin", "info_nce", "information_sums", "sepin", "sepin_of"]

BATCH_SIZE = 256
TEMPERATURE = 0.2
_COOLEST = 0.02  # a cosine over it still has an exponential in float32
_NOTHING = 1e-12  # of |u|^2: what is left of a vector without one feature, and counts as nothing
_LITTLE = 1e-3  # of |u|^2: less than that is left, and float32 would not do
_BLOCK = 2**17  # entries worked on at once, so that they stay in the cache


@dataclass(frozen=True)
class Sepin:
    """What each feature says that the others do not.

    Attributes:
        values: (K,) float64, conditional information of each feature in nats; exactly 0 for one that is always 0.
    """

    values: Tensor

    def at(self, k: int) -> float:
        """SEPIN@k: mean of the k largest values, so never increasing in k; of all of them when k > K."""
        if k < 1:
            raise InputError(f"SEPIN@k is a mean over the k largest features: give k >= 1, not {k}.")
        values = self.values.reshape(-1)
        return float(values.topk(min(k, len(values))).values.mean())

    @property
    def all(self) -> float:
        """SEPIN@all: mean over all K features."""
        return self.at(self.values.numel())


def sepin(u: Tensor, v: Tensor, *, temperature: float = TEMPERATURE, batch_size: int = BATCH_SIZE) -> Sepin:
    """Conditional information of all K features, in one pass: N x ``batch_size`` x K exponentials.

    Args:
        u: (N, K) features of one augmented view of each image, of any sign.
        v: (N, K) features of another view of the same images. Their order should be random: the negatives of an image
            are its neighbours.
        temperature: that similarities are divided by, at least 0.02.
        batch_size: how many images are each other's negatives; N is cut into batches of equal size, at most this.
    """
    _check_views(u, v, temperature)
    if batch_size < 2:
        raise InputError(f"an image needs negatives to be told from: give batch_size >= 2, not {batch_size}.")
    sums = torch.zeros(u.size(1), dtype=torch.float64, device=u.device)
    num_batches = math.ceil(len(u) / batch_size)
    for one, other in zip(u.tensor_split(num_batches), v.tensor_split(num_batches), strict=True):
        sums += information_sums(one, other, temperature=temperature)
    return Sepin(sums / len(u))


@torch.no_grad()
def info_nce(u: Tensor, v: Tensor, *, temperature: float = TEMPERATURE) -> Tensor:
    r"""The InfoNCE lower bound on what two views share, in nats, dims (); the batch gives the negatives.

    .. math:: \ln B + \frac1B \sum_a \ln \frac{e^{s_{aa} / \tau}}{\sum_b e^{s_{ab} / \tau}},
              \quad s_{ab} = \frac{\langle u_a, v_b\rangle}{|u_a| |v_b|}

    Args:
        u: (B, K) features of one view. The similarity of a vector of zeros to any other is 0.
        v: (B, K) features of the other view.
        temperature: tau, at least 0.02.
    """
    _check_views(u, v, temperature)
    logits = _unit(u) @ _unit(v).t() / temperature
    return (logits.diagonal() - logits.logsumexp(dim=1)).mean() + math.log(len(u))


@torch.no_grad()
def information_sums(u: Tensor, v: Tensor, *, temperature: float = TEMPERATURE) -> Tensor:
    """B times the conditional information of each feature, (K,) float64, with the batch as negatives.

    A view whose only active feature is i is a vector of zeros without it; its similarities are then 0. Where one feature
    is nearly all of some vector the batch is worked on in float64, about four times slower.

    Args:
        u: (B, K) features of one view.
        v: (B, K) features of the other view.
        temperature: at least 0.02.
    """
    _check_views(u, v, temperature)
    sums = torch.zeros(u.size(1), dtype=torch.float64, device=u.device)
    active = ((u != 0) | (v != 0)).any(dim=0).nonzero().flatten()  # the others say nothing: exactly 0
    one, other = _unit(u)[:, active], _unit(v)[:, active]
    cosine = one @ other.t()
    full = _cross_entropy(cosine.diagonal(), (cosine / temperature).logsumexp(dim=1), temperature)
    sums[active] = _without_each(one, other, cosine, temperature=temperature) - full
    return sums


def _without_each(u: Tensor, v: Tensor, cosine: Tensor, *, temperature: float) -> Tensor:
    """Cross entropy, summed over the batch, without each of the features in turn: (K,) float64.

    Args:
        u: (B, K) float64, rows of length 1 (or 0).
        v: the same of the other view.
        cosine: (B, B) their products.
        temperature: at least 0.02.
    """
    rest_u, rest_v = _rest(u), _rest(v)
    scale_u, scale_v = _inverse_root(rest_u), _inverse_root(rest_v)  # 1 / |u without i|, or 0
    own = (cosine.diagonal()[:, None] - u * v) * scale_u * scale_v
    least = min(float(rest[rest > _NOTHING].min()) if (rest > _NOTHING).any() else 1.0 for rest in (rest_u, rest_v))
    dtype = torch.float32 if least > _LITTLE else torch.float64
    # 2^x is faster than e^x; features first, so that a block of them is contiguous
    scale_u = scale_u / (temperature * math.log(2))
    left, right = (u * scale_u).t().to(dtype).contiguous(), (v * scale_v).t().to(dtype).contiguous()
    rows, columns = scale_u.t().to(dtype).contiguous(), scale_v.t().to(dtype).contiguous()
    cosine, count = cosine.to(dtype), len(u)
    log_sums = torch.empty(u.size(1), count, dtype=torch.float64, device=u.device)
    step = max(1, _BLOCK // (count * count))
    for start in range(0, u.size(1), step):
        block = slice(start, start + step)
        logits = cosine * columns[block, None, :]  # (step, B, B)
        logits.mul_(rows[block, :, None]).addcmul_(left[block, :, None], right[block, None, :], value=-1)
        log_sums[block] = logits.exp2_().sum(dim=2).double().log_()
    return _cross_entropy(own, log_sums.t(), temperature)


def _cross_entropy(own: Tensor, log_sum: Tensor, temperature: float) -> Tensor:
    """Sum over the first dim (B) of log_sum - own / temperature."""
    return (log_sum - own / temperature).sum(dim=0)


def _unit(rows: Tensor) -> Tensor:
    """Rows (B, K) of length 1 in float64; zeros stay zeros. The largest entry goes first, lest its square overflow."""
    rows = rows.double()
    rows = rows / rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    lengths: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / lengths.clamp_min(1)  # it is at least 1, or 0


def _rest(unit: Tensor) -> Tensor:
    """|u|^2 - u_i^2 of rows of length 1 (or 0): (B, K)."""
    squares = unit.square()
    return squares.sum(dim=1, keepdim=True) - squares


def _inverse_root(rest: Tensor) -> Tensor:
    return torch.where(rest > _NOTHING, rest.clamp_min(_NOTHING).rsqrt(), 0.0)


def _check_views(u: Tensor, v: Tensor, temperature: float) -> None:
    if u.dim() != 2 or u.size() != v.size():
        dims = f"{tuple(u.size())} and {tuple(v.size())}"
        raise InputError(f"two views of the same images are two tensors (N, K) of one size, not {dims}.")
    if not u.numel():
        raise InputError(
            f"there is nothing to measure: the views have dims {tuple(u.size())}; give images and features."
        )
    if not (u.isfinite().all() and v.isfinite().all()):
        raise InputError("the features of a view are NaN or infinite: check the images and the backbone.")
    if not _COOLEST <= temperature < math.inf:
        raise InputError(f"the temperature must be at least {_COOLEST}, not {temperature}.")


def sepin_of(
    model: nn.Module,
    data: "LabelledSet",
    *,
    augment: Callable[[Tensor], Tensor],
    num_images: int = 10_000,
    seed: int = 0,
    temperature: float = TEMPERATURE,
    batch_size: int = BATCH_SIZE,
    head: str | None = None,
    progress: bool | None = None,
) -> Sepin:
    """SEPIN of what a model's decision rests on: the mean of theta, or what enters a linear head, as it is.

    Args:
        model: with a decision layer, or a linear head.
        data: images, of which ``num_images`` are chosen and mixed by the seed.
        augment: floats in [0, 1] (B, C, H, W) to the same, at random, such as :class:`bndl.train.Augment`; called twice a
            batch. It draws from torch's global generator, which is as before afterwards.
        num_images: at most this many.
        seed: of the choice and of the augmentation.
        temperature: as in :func:`sepin`.
        batch_size: images a pass, and each other's negatives.
        head: dotted path of a linear head, where it cannot be told.
        progress: as in :func:`bndl.progress.track`.
    """
    if num_images < 1 or not len(data):
        raise InputError(f"SEPIN needs images: {data.name} has {len(data)} and num_images is {num_images}.")
    has_layer = any(isinstance(module, DecisionLayer) for module in model.modules())
    layer: Head = find_layer(model) if has_layer else find_linear(model, head)[1]
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:num_images]
    batches = iterate(data.subset(chosen), batch_size=batch_size)
    views: tuple[list[Tensor], list[Tensor]] = ([], [])
    with evaluating(model), torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        for batch in track(batches, "two views", progress=progress):
            images = split_batch(batch)[0]
            if not isinstance(images, Tensor):
                raise InputError(f"SEPIN needs images (C, H, W) to augment; {data.name} gives {type(images).__name__}.")
            images = images if images.is_floating_point() else images / 255
            for view in views:
                view.append(_theta(model, augment(images), layer))
    return sepin(torch.cat(views[0]), torch.cat(views[1]), temperature=temperature, batch_size=batch_size)


def _theta(model: nn.Module, images: Tensor, layer: Head) -> Tensor:
    """Features (B, K) of a batch of images."""
    h = features_of(model, images, head=layer)
    return layer.theta(h).mean if isinstance(layer, DecisionLayer) else h
