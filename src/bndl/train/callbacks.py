"""What the engine adds to Lightning: steps that can be repeated, a history that survives a resume, the time lost on data."""

import csv
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar

from bndl.files import replacing

__all__ = ["Bar", "Checkpoints", "History", "SeedEachStep"]


class SeedEachStep(L.Callback):
    """Makes the randomness of a step (dropout, augmentation, draws) a function of seed, epoch, batch and process.

    So a run that was stopped anywhere goes on with the same numbers. The caller's generators are put back afterwards.

    Args:
        seed: of the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._before: tuple[torch.Tensor, list[torch.Tensor]] | None = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remember the caller's state."""
        self._before = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed this step."""
        place = [self.seed, trainer.current_epoch, batch_idx, trainer.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the caller's state back."""
        self._restore()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Put the caller's state back."""
        self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            torch.set_rng_state(self._before[0])
            if self._before[1]:
                torch.cuda.set_rng_state_all(self._before[1])
        self._before = None


class History(L.Callback):
    """One row an epoch, as CSV, rewritten whole; it lives in the checkpoint, so a resumed run goes on where that stood.

    Each row has the epoch, its loss and validation figures, the learning rate, the seconds it took to train, and the
    share of them that was spent waiting for data.

    Args:
        path: the CSV file.
        tell: is given each new row.
    """

    def __init__(self, path: Path, *, tell: Callable[[dict[str, float]], None] = lambda _: None) -> None:
        self.path, self.tell = path, tell
        self.rows: list[dict[str, float]] = []
        self._started = self._idle_since = self._waited = self._trained = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The rows so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after these rows."""
        self.rows = list(state_dict["rows"])

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clocks."""
        self._started = self._idle_since = time.perf_counter()
        self._waited = 0.0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """A batch is there: what passed since the last one was waiting."""
        self._waited += time.perf_counter() - self._idle_since

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The step is done: now we wait."""
        self._idle_since = time.perf_counter()
        self._trained = self._idle_since - self._started

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the row."""
        figures = {name: float(value) for name, value in trainer.callback_metrics.items() if "_step" not in name}
        rate = float(trainer.optimizers[0].param_groups[0]["lr"])
        row = {"epoch": trainer.current_epoch + 1, **figures, "lr": rate}
        row |= {"seconds": round(self._trained, 2), "data_wait": round(self._waited / max(1e-9, self._trained), 4)}
        self.rows.append(row)
        if trainer.is_global_zero:
            text = io.StringIO()
            writer = csv.DictWriter(text, list(self.rows[-1]), extrasaction="ignore", restval="")
            writer.writeheader()
            writer.writerows(self.rows)
            with replacing(self.path) as temporary:
                temporary.write_text(text.getvalue())
            self.tell(row)


class Checkpoints(ModelCheckpoint):
    """Lightning's checkpoints, that remember the best score also when the run's folder has moved."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what was known, at the place where the files are now."""
        here = str(self.dirpath)
        there = str(state_dict["dirpath"])
        moved = {k: v.replace(there, here) if isinstance(v, str) else v for k, v in state_dict.items()}
        scores: dict[str, Any] = state_dict["best_k_models"]
        super().load_state_dict(moved | {"best_k_models": {k.replace(there, here): v for k, v in scores.items()}})


class Bar(RichProgressBar):
    """Lightning's bar without the logger's version, which says nothing here."""

    def get_metrics(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """What stands beside the bar."""
        figures = super().get_metrics(trainer, pl_module)
        figures.pop("v_num", None)
        return figures
