r"""CARD (Han et al. 2022): labels drawn by a diffusion that a frozen classifier guides.

A draw :math:`y_0 \in \mathbb{R}^C` speaks for the classes whose prototype it comes near,

.. math:: p_c \propto \exp\bigl(-(y_{0c} - 1)^2 / \tau\bigr),

and the draws' average is the answer. See :mod:`bndl.baselines.diffusion` for the diffusion itself.
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from bndl.baselines.diffusion import NoiseNetwork, Schedule, sample
from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.predictions import from_draws
from bndl.baselines.tuning import BATCH, Candidate, Task, at_best_temperature
from bndl.errors import InputError
from bndl.features import FeatureSet, Inputs
from bndl.prediction import Prediction, cat

__all__ = ["CARD", "LabelDiffusion"]

TAUS = tuple(10 ** (exponent / 10) for exponent in range(-20, 11))  # .01 to 10
LEARNING_RATE = 3e-3
_WARM_UP = 0.05
_AVERAGE = 0.995  # of the moving average of the weights, which is what predicts
_LARGEST_GRADIENT = 1.0
_ROWS = 128  # examples that walk together: their draws fit a processor's cache
_LEAST_SPREAD = 1e-3


class CARD(Method):
    """The guide is the dense head at its best temperature; the diffusion learns from the features.

    Sampling is exact, by all steps. What differs from the authors' is size: 50 steps, 50 draws and a width of 128 where
    theirs are 1,000, 100 and 4,096; see :class:`bndl.baselines.diffusion.NoiseNetwork` for what makes up for it.

    Args:
        num_samples: S, draws of a label an example.
        num_steps: T, steps of the diffusion.
        width: of the noise network.
        num_updates: steps of the optimiser.
    """

    name = "card"
    about = "diffusion over labels, guided by the dense head, 50 draws"
    paper = "CARD"

    def __init__(
        self, num_samples: int = 50, num_steps: int = 50, *, width: int = 128, num_updates: int = 2500
    ) -> None:
        self.num_samples, self.num_steps, self.width, self.num_updates = num_samples, num_steps, width, num_updates

    def tries(self, head: nn.Linear, task: Task) -> Iterable[Candidate]:
        """A diffusion learnt from each source, each with the tau that suits the judge's examples."""
        guide = at_best_temperature(head, task.fitting)
        for name, source in task.sources():
            with torch.random.fork_rng([]):
                torch.manual_seed(task.seed)
                spread = _spread(guide, task.fitting)
                model = LabelDiffusion(guide, num_steps=self.num_steps, width=self.width, spread=spread)
            _learn(model, source, num_updates=self.num_updates, seed=task.seed)
            nll = self._choose_tau(model, task)
            yield Candidate(model, f"learnt from {name}, tau {model.tau:.3g}", nll)

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """Draws with the same noise for every example, so that the batch does not matter."""
        if not isinstance(model, LabelDiffusion):
            raise InputError(f"CARD predicts by a LabelDiffusion, got {type(model).__name__}: call CARD().fit(...).")
        noise = model.noise(self.num_samples, seed=seed)

        def predict(inputs: Inputs) -> Prediction:
            if not isinstance(inputs, Tensor):
                raise InputError(f"CARD takes features (B, K), got {type(inputs).__name__}: give the tensor itself.")
            parts = [_scores(model.draw(rows, noise), model.tau) for rows in inputs.split(_ROWS)]
            return cat([from_draws(part, source="aleatoric") for part in parts])

        return Fitted(predict, Size.of(model, extra=1))

    def _choose_tau(self, model: "LabelDiffusion", task: Task) -> float:
        """Set the model's tau to the one with the least NLL of the judge's examples, which is returned."""
        noise = model.noise(self.num_samples, seed=task.seed)
        draws = torch.cat([model.draw(rows, noise) for rows in task.judge.features.split(_ROWS)], dim=1)
        nll, model.tau = min((_nll(draws, task.judge.labels, tau), tau) for tau in TAUS)
        return nll if math.isfinite(nll) else math.inf


class LabelDiffusion(nn.Module):
    """A frozen classifier, the diffusion of labels towards its probabilities, and the network that walks back.

    Args:
        guide: the classifier, a linear head.
        num_steps: T.
        width: of the noise network.
        spread: root mean square of one-hot labels minus the guide's probabilities.
    """

    def __init__(self, guide: nn.Linear, *, num_steps: int, width: int, spread: float) -> None:
        super().__init__()
        self.guide = guide.requires_grad_(False)
        self.schedule = Schedule.linear(num_steps)
        K, C = guide.in_features, guide.out_features
        self.network = NoiseNetwork(K, C, schedule=self.schedule, width=width, spread=spread).to(guide.weight)
        self.tau = 1.0

    def loss(self, batch: FeatureSet, generator: torch.Generator) -> Tensor:
        """Mean squared error of the estimated noise, at one step an example; steps come in pairs t and T + 1 - t."""
        B, T, C = len(batch), self.schedule.num_steps, self.guide.out_features
        half = torch.randint(1, T + 1, ((B + 1) // 2,), generator=generator)
        step = torch.cat([half, T + 1 - half])[:B]
        data = batch.like(self.guide.weight)
        noise = torch.randn(B, C, generator=generator).to(data.features)
        probs = self.guide(data.features).softmax(dim=1)
        noisy = self.schedule.diffuse(F.one_hot(data.labels, C).to(probs), probs, step, noise)
        return F.mse_loss(self.network(data.features, noisy, probs, step), noise)

    def noise(self, num_samples: int, *, seed: int) -> Tensor:
        """What makes S draws random, (T, S, 1, C)."""
        generator = torch.Generator().manual_seed(seed)
        dims = (self.schedule.num_steps, num_samples, 1, self.guide.out_features)
        return torch.randn(dims, generator=generator).to(self.guide.weight)

    @torch.no_grad()
    def draw(self, features: Tensor, noise: Tensor) -> Tensor:
        """Labels y_0 (S, B, C) of features (B, K), by walks with this noise; for a model in ``eval()``."""
        features = features.to(self.guide.weight)
        probs = self.guide(features).softmax(dim=1)
        return sample(self.schedule, probs, noise, self.network.given(features, probs))


def _learn(model: LabelDiffusion, data: FeatureSet, *, num_updates: int, seed: int) -> None:
    """Adam with a short warm-up and a cosine decay; the moving average of the weights is what stays."""
    generator = torch.Generator().manual_seed(seed)
    network = model.network.train()
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(_AVERAGE), use_buffers=True)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    for update in range(num_updates):
        warm = min(1.0, (update + 1) / (_WARM_UP * num_updates))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * warm * 0.5 * (1 + math.cos(math.pi * update / num_updates))
        rows = torch.randint(len(data), (BATCH,), generator=generator)
        with torch.enable_grad():
            loss = model.loss(data.take(rows), generator)
            optimizer.zero_grad()
            loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), _LARGEST_GRADIENT)
        optimizer.step()
        average.update_parameters(network)
    network.load_state_dict(average.module.state_dict())
    model.eval()


@torch.no_grad()
def _spread(guide: nn.Linear, data: FeatureSet) -> float:
    probs = guide(data.features.to(guide.weight)).softmax(dim=1)
    off = F.one_hot(data.labels, guide.out_features).to(probs) - probs
    return max(_LEAST_SPREAD, float(off.square().mean().sqrt()))


def _scores(draws: Tensor, tau: float) -> Tensor:
    """Log-probabilities (S, B, C), up to a constant, of the classes whose prototypes the draws come near."""
    return -(draws - 1).square() / tau


def _nll(draws: Tensor, labels: Tensor, tau: float) -> float:
    log_probs = _scores(draws, tau).log_softmax(dim=2).logsumexp(dim=0) - math.log(len(draws))
    return float(F.nll_loss(log_probs, labels.to(log_probs.device)))
