"""Deep ensemble (Lakshminarayanan et al. 2017): members trained apart, their probabilities averaged."""

from collections.abc import Sequence

import torch
from torch import nn

from bndl.baselines.dense import Dense, linear_logits
from bndl.baselines.method import Fitted, Method, Size, fresh
from bndl.baselines.predictions import from_draws
from bndl.baselines.tuning import Task, best_of, tune
from bndl.convert import find_linear
from bndl.features import FeatureSet, Inputs
from bndl.prediction import Prediction

__all__ = ["Ensemble"]


class Ensemble(Method):
    """Of whole networks, see :meth:`of`; on features of heads, which share the backbone and so know less of their doubt.

    Args:
        num_members: heads to train on features.
    """

    name = "ensemble"
    about = "average of dense members: networks, or five heads on features"

    def __init__(self, num_members: int = 5) -> None:
        self.num_members = num_members

    def of(self, members: Sequence[nn.Module]) -> Fitted:
        """An ensemble of networks, or heads, that were trained with a dense head."""
        heads = [find_linear(member)[1] for member in members]

        def predict(inputs: Inputs) -> Prediction:
            pairs = zip(members, heads, strict=True)
            return from_draws(torch.stack([linear_logits(member, head, inputs) for member, head in pairs]))

        return Fitted(predict, Size.of(nn.ModuleList(heads)))

    def fit(self, head: nn.Linear, train: FeatureSet, val: FeatureSet, *, seed: int = 0) -> Fitted:
        """Heads that start from the given one plus noise, each on its own resample of the training features."""
        members = []
        for number in range(self.num_members):
            generator = torch.Generator().manual_seed(1000 * seed + number)
            task = Task.of(_resampled(train, generator), val, seed=1000 * seed + number)
            members.append(best_of(tune(Dense(), _shaken(head, generator), task)).module)
        return self.of(members)


def _resampled(data: FeatureSet, generator: torch.Generator) -> FeatureSet:
    return data.take(torch.randint(len(data), (len(data),), generator=generator))


def _shaken(head: nn.Linear, generator: torch.Generator) -> nn.Linear:
    """A copy whose weights have noise of a tenth of their spread."""
    shaken = fresh(head)
    with torch.no_grad():
        noise = torch.randn(shaken.weight.size(), generator=generator).to(shaken.weight)
        shaken.weight += 0.1 * shaken.weight.std() * noise
    return shaken
