"""The thin Lightning module: any classifier, with the ELBO's KL if it has a decision layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from bndl.calibrate import best_log_scale
from bndl.errors import InputError
from bndl.layer import DecisionLayer
from bndl.objective import Objective, kl, resolve

__all__ = ["Classifier", "Optimization", "cross_entropy"]

Criterion = Callable[[Tensor, Tensor, float], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor, progress: float) -> Tensor:
    """The usual loss, a scalar, whatever the share of the training that is done."""
    return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class Optimization:
    """How the weights move.

    Attributes:
        optimizer: ``"sgd"`` with Nesterov momentum, or ``"adamw"``.
        lr: peak learning rate.
        momentum: of sgd.
        weight_decay: of all weights but a decision layer's shapes, which are no weights.
        schedule: after the warm-up ``"cosine"`` to zero, ``"linear"`` to zero, or ``"constant"``.
        warmup: share of the steps over which the learning rate rises from zero.
        kl_warmup: share of the steps over which beta rises from zero.
    """

    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = 0.05
    kl_warmup: float = 0.2

    def rate(self, progress: float) -> float:
        """The learning rate in units of ``lr``, at a share of the steps between 0 and 1."""
        if progress < self.warmup:
            return progress / self.warmup
        rest = (progress - self.warmup) / max(1e-9, 1 - self.warmup)
        return {"cosine": 0.5 * (1 + math.cos(math.pi * min(1.0, rest))), "linear": 1 - min(1.0, rest)}.get(
            self.schedule, 1.0
        )


@dataclass
class _Validation:
    logits: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)


class Classifier(L.LightningModule):
    """Trains a model that maps inputs to logits, by cross entropy plus the KL of its decision layer, if it has one.

    Subclass it and override what you need: ``loss`` for another objective, ``configure_optimizers`` for another schedule.

    Logged: ``loss``, ``kl``, and each epoch ``val_nll`` (at the best temperature, so that a sharp network is not taken for
    a bad one), ``val_accuracy``.

    Args:
        model: maps inputs to logits (B, C), or to an object with ``logits``.
        num_data: N, training examples of all processes together.
        optimization: optimizer, learning rate and warm-ups.
        objective: weight and kind of the KL, see :func:`bndl.kl`; without a decision layer it does not matter.
        augment: is applied to training inputs.
        criterion: the loss of logits (B, C), labels (B,) and the share of the training that is done, in place of the
            cross entropy; the KL of a decision layer is added to it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        num_data: int,
        optimization: Optimization | None = None,
        objective: Objective | str = "default",
        augment: nn.Module | None = None,
        criterion: Criterion = cross_entropy,
    ) -> None:
        super().__init__()
        self.model = model
        self.num_data, self.objective = num_data, resolve(objective)
        self.optimization = Optimization() if optimization is None else optimization
        self.augment = nn.Identity() if augment is None else augment
        self.criterion = criterion
        self.bayesian = any(isinstance(module, DecisionLayer) for module in model.modules())
        self._validation = _Validation()

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, C)."""
        output = self.model(inputs)
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits

    def beta(self) -> float:
        """The weight of the KL at this step."""
        warmup = self.optimization.kl_warmup * self._num_steps()
        return self.objective.beta * min(1.0, (self.global_step + 1) / max(1.0, warmup))

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The negative ELBO per example; with no decision layer, the criterion alone."""
        loss = self.criterion(self(inputs), labels, self.global_step / self._num_steps())
        if not self.bayesian or not self.objective.beta:
            return loss
        cost = kl(self.model, self.num_data, objective=self.objective, beta=self.beta())
        self.log("kl", cost.detach(), on_step=False, on_epoch=True, batch_size=len(labels), sync_dist=True)
        return loss + cost

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one augmented batch."""
        inputs, labels = batch
        loss = self.loss(self.augment(inputs), labels)
        if not torch.isfinite(loss):
            raise InputError("the loss is not finite: lower the learning rate, or clip gradients (train.clip).")
        self.log("loss", loss.detach(), on_step=False, on_epoch=True, batch_size=len(labels), sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Keep the mean logits of one batch."""
        inputs, labels = batch
        self._validation.logits.append(self(inputs).float())
        self._validation.labels.append(labels)

    def on_validation_epoch_end(self) -> None:
        """Log how well the validation data of all processes are predicted."""
        logits, labels = torch.cat(self._validation.logits), torch.cat(self._validation.labels)
        self._validation = _Validation()
        if self.trainer.world_size > 1:
            logits, labels = self._gathered(logits), self._gathered(labels)
            known = getattr(getattr(self.trainer, "datamodule", None), "num_val", len(labels))
            logits, labels = logits[:known], labels[:known]  # the sampler repeats a few so that all have as many
        if not torch.isfinite(logits).all():
            raise InputError("the validation logits are not finite: lower the learning rate, or clip gradients.")
        scale = best_log_scale(logits, labels).exp()
        self.log("val_nll", F.cross_entropy(logits * scale, labels), sync_dist=True)
        self.log("val_accuracy", (logits.argmax(dim=1) == labels).float().mean(), sync_dist=True)

    def _gathered(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in the order of the data: process r holds every W-th from r on."""
        gathered = self.all_gather(rows)
        assert isinstance(gathered, Tensor)
        return gathered.transpose(0, 1).flatten(0, 1)

    def configure_optimizers(self) -> Any:
        """The optimizer, and its learning rate at each step."""
        settings = self.optimization
        decayed, free = self._split_parameters()
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
        groups = [group for group in groups if group["params"]]
        optimizer: torch.optim.Optimizer
        if settings.optimizer == "sgd":
            optimizer = torch.optim.SGD(
                groups,
                settings.lr,
                settings.momentum,
                weight_decay=settings.weight_decay,
                nesterov=settings.momentum > 0,
            )
        else:
            optimizer = torch.optim.AdamW(groups, settings.lr, weight_decay=settings.weight_decay)
        num_steps = self._num_steps()
        schedule = LambdaLR(optimizer, lambda step: settings.rate((step + 1) / (num_steps + 1)))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _num_steps(self) -> int:
        return max(1, int(self.trainer.estimated_stepping_batches))

    def _split_parameters(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """What weight decay pulls to zero, and what it leaves alone: a decision layer's shapes."""
        free = {
            id(parameter)
            for layer in self.model.modules()
            if isinstance(layer, DecisionLayer)
            for name, parameter in layer.named_parameters()
            if "shape" in name
        }
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return [p for p in trained if id(p) not in free], [p for p in trained if id(p) in free]
