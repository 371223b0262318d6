"""Train a head on cached features by any loss, with the same budget for every method, and choose on held-out examples."""

import copy
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from bndl.calibrate import best_log_scale
from bndl.features import FeatureSet
from bndl.fit import hold_out

if TYPE_CHECKING:
    from bndl.baselines.method import Method

__all__ = ["Candidate", "Criterion", "Task", "at_best_temperature", "best_of", "judge", "tune"]

EPOCHS = 20
LEARNING_RATES = (1e-3, 1e-2)
BATCH = 256
_WARM_UP = 0.1


class Criterion(Protocol):
    """Logits (B, C), labels (B,), share of the training done -> a scalar loss."""

    def __call__(self, logits: Tensor, labels: Tensor, progress: float, /) -> Tensor:
        """The loss."""
        ...


@dataclass(frozen=True)
class Task:
    """What a head may learn from and what judges it.

    Attributes:
        train: the training features.
        fitting: most of the validation features, which the backbone has not seen.
        judge: the rest of the validation features; no candidate learns from them.
        val: all validation features.
        seed: of everything random.
    """

    train: FeatureSet
    fitting: FeatureSet
    judge: FeatureSet
    val: FeatureSet
    seed: int

    @classmethod
    def of(cls, train: FeatureSet, val: FeatureSet, *, seed: int) -> "Task":
        """Hold out a fifth of the validation features, seeded and stratified, to judge by."""
        rows, rest = hold_out(val, torch.Generator().manual_seed(seed))
        return cls(train=train, fitting=val.take(rows), judge=rest, val=val, seed=seed)

    def sources(self) -> Iterator[tuple[str, FeatureSet]]:
        """What to learn from, by name: the examples that the backbone has seen, and those that it has not."""
        yield "train", self.train
        yield "val", self.fitting


@dataclass(frozen=True)
class Candidate:
    """A trained head, how it came about, and the NLL of the judge's examples."""

    module: nn.Module
    note: str
    nll: float


def best_of(candidates: Iterable[Candidate]) -> Candidate:
    """The candidate with the least NLL; the first of equals."""
    return min(candidates, key=lambda candidate: candidate.nll)


def judge(method: "Method", module: nn.Module, task: Task, note: str) -> Candidate:
    """A candidate out of a head, by what the method predicts for the judge's examples."""
    data = task.judge
    probs = method.predictor(module, seed=task.seed).predict(data.features.float()).probs
    chosen = probs.gather(1, data.labels[:, None]).clamp_min(torch.finfo(probs.dtype).tiny)
    nll = float(-chosen.log().mean())
    return Candidate(copy.deepcopy(module), note, nll if math.isfinite(nll) else math.inf)


def tune(
    method: "Method", head: nn.Linear, task: Task, *, epochs: int = EPOCHS, about: str = ""
) -> Iterator[Candidate]:
    """Candidates: the head as it is, the head at its best temperature, and from there the best epoch of each training.

    A network is too sure of what it has not seen; a method that starts from a calibrated head need not spend its few
    epochs on the scale of the logits.
    """
    from bndl.baselines.method import fresh

    start = at_best_temperature(head, task.fitting)
    with torch.random.fork_rng([]):
        torch.manual_seed(task.seed)
        yield judge(method, method.dress(fresh(head)).eval(), task, f"{about}the given head")
        yield judge(method, method.dress(fresh(start)).eval(), task, f"{about}the given head, scaled")
        for (name, source), lr in itertools.product(task.sources(), LEARNING_RATES):
            module = method.dress(fresh(start))
            best: Candidate | None = None
            for epoch in _train(module, method.criterion, source, epochs=epochs, lr=lr, seed=task.seed):
                now = judge(method, module.eval(), task, f"{about}epoch {epoch} on {name}, lr {lr}")
                best = now if best is None or now.nll < best.nll else best
            if best is not None:
                yield best


@torch.no_grad()
def at_best_temperature(head: nn.Linear, data: FeatureSet) -> nn.Linear:
    """A copy of the head whose logits are divided by the temperature that suits ``data`` best."""
    scaled = copy.deepcopy(head).float()
    scale = best_log_scale(scaled(data.features.float()), data.labels).exp()
    for parameter in scaled.parameters():
        parameter.mul_(scale)
    return scaled


def _train(
    module: nn.Module, criterion: Criterion, data: FeatureSet, *, epochs: int, lr: float, seed: int
) -> Iterator[int]:
    """AdamW with a short warm-up and a cosine decay; yields after each epoch."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=lr, weight_decay=0.0)
    num_steps, step = epochs * math.ceil(len(data) / BATCH), 0
    for epoch in range(1, epochs + 1):
        module.train()
        for rows in torch.randperm(len(data), generator=generator).split(BATCH):
            progress = step / num_steps
            warm = min(1.0, (step + 1) / max(1.0, _WARM_UP * num_steps))
            for group in optimizer.param_groups:
                group["lr"] = lr * warm * 0.5 * (1 + math.cos(math.pi * progress))
            batch = data.take(rows)
            with torch.enable_grad():
                loss = criterion(module(batch.features.float()), batch.labels, progress)
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            step += 1
        yield epoch
