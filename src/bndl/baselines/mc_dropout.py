"""MC dropout (Gal and Ghahramani 2016): dropout stays on when predicting, and the average over masks is the answer."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.predictions import from_draws
from bndl.baselines.tuning import Candidate, Task, tune
from bndl.convert import find_linear, replace_everywhere
from bndl.errors import InputError
from bndl.features import Inputs, evaluating, one_pass
from bndl.prediction import Prediction

__all__ = ["MCDropout"]

RATES = (0.05, 0.1, 0.2, 0.3, 0.5)


class MCDropout(Method):
    """Dropout before the head and, in our own networks, between the stages.

    Args:
        rate: share of the numbers that a mask sets to zero. On features it is chosen among ``RATES``.
        num_samples: S, passes through whatever comes after the first dropout: the whole network when it was trained
            from scratch, the head alone on features.
    """

    name = "mc-dropout"
    about = "dropout kept on when predicting, 20 masks"
    from_scratch = True
    paper = "MC dropout"

    def __init__(self, rate: float = 0.1, num_samples: int = 20) -> None:
        self.rate, self.num_samples = rate, num_samples

    def dress(self, model: nn.Module, **layer: Any) -> nn.Module:
        """Put dropout in."""
        _, head = find_linear(model)
        dropping = nn.Sequential(OrderedDict(dropout=nn.Dropout(self.rate), linear=head))
        if isinstance(model, nn.Linear):
            return dropping
        replace_everywhere(model, head, dropping)
        stages = next((module.stages for module in model.modules() if hasattr(module, "stages")), None)
        if isinstance(stages, nn.Sequential):
            for index in range(len(stages) - 1):  # the last stage's output is what the head's own dropout sees
                stages[index] = nn.Sequential(stages[index], nn.Dropout(self.rate))
        return model

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """The average over masks; on features alone a mask is shared by all examples, so the batch does not matter."""
        _, head = find_linear(model)
        modules = [module for module in model.modules() if isinstance(module, nn.Dropout)]
        head_only = isinstance(model, nn.Sequential) and len(model) == 2 and model[1] is head
        draw = self._masks_on_head if head_only else self._passes

        def predict(inputs: Inputs) -> Prediction:
            with evaluating(model), torch.random.fork_rng([]):
                torch.manual_seed(seed)
                return from_draws(draw(model, head, modules, inputs))

        return Fitted(predict, Size.of(head), note=f"rate {modules[0].p:g}")

    def _masks_on_head(self, model: nn.Module, head: nn.Linear, modules: list[nn.Dropout], inputs: Inputs) -> Tensor:
        rate = modules[0].p
        if not isinstance(inputs, Tensor):
            raise InputError(f"a head takes features (B, K), got {type(inputs).__name__}: give the tensor itself.")
        keep = (torch.rand(self.num_samples, head.in_features) >= rate).to(head.weight) / (1 - rate)
        features = inputs.to(head.weight)
        return torch.stack([head(features * mask) for mask in keep])

    def _passes(self, model: nn.Module, head: nn.Linear, modules: list[nn.Dropout], inputs: Inputs) -> Tensor:
        for module in modules:
            module.train()
        return torch.stack([one_pass(model, inputs, head=head)[1] for _ in range(self.num_samples)])

    def tries(self, head: nn.Linear, task: Task) -> Iterable[Candidate]:
        """Each rate, with the given head and with one that was trained on under it."""
        for rate in RATES:
            yield from tune(MCDropout(rate, self.num_samples), head, task, about=f"rate {rate}, ")
