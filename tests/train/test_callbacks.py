"""What the engine adds to Lightning: randomness that belongs to a step, a history without gaps."""

import csv
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bndl.train import callbacks
from bndl.train.callbacks import History, SeedEachStep

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning")


class Drawing(L.LightningModule):
    """Draws a number each step, and may fail at one."""

    def __init__(self, *, fails: BaseException | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.draws: dict[tuple[int, int], float] = {}
        self.fails = fails

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.draws[self.current_epoch, batch_idx] = float(torch.rand(()))
        if self.fails is not None and self.current_epoch == 1:
            raise self.fails
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        torch.rand(3)  # validation may draw too: the next epoch must not notice
        self.log("val_nll", float(self.current_epoch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.25)


def fit(module: Drawing, *callbacks: L.Callback, epochs: int = 3, data: Dataset | None = None, **given) -> None:
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    data = TensorDataset(torch.ones(4, 1)) if data is None else data
    trainer.fit(module, DataLoader(data, batch_size=1), DataLoader(TensorDataset(torch.ones(2, 1))), **given)


def draws(seed: int, *, epochs: int = 3) -> dict[tuple[int, int], float]:
    module = Drawing()
    fit(module, SeedEachStep(seed), epochs=epochs)
    return module.draws


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------------------------------------- SeedEachStep


def test_a_steps_randomness_is_of_seed_epoch_and_batch_alone():
    torch.manual_seed(1)
    first = draws(0)
    torch.manual_seed(2)
    assert draws(0) == first
    assert draws(0, epochs=2) == {place: value for place, value in first.items() if place[0] < 2}
    assert len(set(first.values()) | set(draws(1).values())) == 2 * 3 * 4, "no two steps share their numbers"


def test_each_process_draws_its_own():
    def draw(epoch: int, batch: int, rank: int) -> float:
        SeedEachStep(0).on_train_batch_start(SimpleNamespace(current_epoch=epoch, global_rank=rank), None, None, batch)
        return float(torch.rand(()))

    places = [(epoch, batch, rank) for epoch in range(3) for batch in range(3) for rank in range(3)]
    assert len({draw(*place) for place in places}) == len(places)
    assert draw(2, 1, 1) == draw(2, 1, 1)


def test_the_callers_state_is_put_back_after_training():
    module = Drawing()
    before = torch.get_rng_state()
    fit(module, SeedEachStep(0))
    assert len(module.draws) == 3 * 4
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("error", "raised"), [(ValueError("oh"), ValueError), (KeyboardInterrupt(), (KeyboardInterrupt, SystemExit))]
)
def test_the_callers_state_is_put_back_after_an_error(error, raised):
    module = Drawing(fails=error)
    before = torch.get_rng_state()
    with pytest.raises(raised):
        fit(module, SeedEachStep(0))
    assert len(module.draws) == 4 + 1
    assert torch.equal(torch.get_rng_state(), before)


# -------------------------------------------------------------------------------------------------------------- History


def test_one_row_an_epoch(tmp_path):
    path, told = tmp_path / "history.csv", []
    fit(Drawing(), History(path, tell=told.append))
    found = rows(path)
    assert [row["epoch"] for row in found] == ["1", "2", "3"]
    assert [row["val_nll"] for row in found] == ["0.0", "1.0", "2.0"]
    assert {"loss", "lr", "seconds", "data_wait"} <= found[0].keys()
    assert all(row["lr"] == "0.25" for row in found)
    assert all(0 <= float(row["data_wait"]) <= 1 for row in found)
    assert [{key: str(value) for key, value in row.items()} for row in told] == found
    assert [entry.name for entry in tmp_path.iterdir()] == ["history.csv"]


def test_the_file_is_whole_after_each_epoch(tmp_path):
    path, lengths = tmp_path / "history.csv", []
    fit(Drawing(), History(path, tell=lambda _: lengths.append(len(rows(path)))))
    assert lengths == [1, 2, 3]


@pytest.mark.parametrize("kept", [1, 2], ids=["killed before the checkpoint", "killed after it"])
def test_a_resumed_run_has_each_epoch_once(kept, tmp_path):
    path = tmp_path / "history.csv"
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(Drawing(), History(path), keep, epochs=2)
    before = rows(path)
    assert [row["epoch"] for row in before] == ["1", "2"]
    checkpoint = tmp_path / f"epoch={kept - 1}.ckpt"
    fit(Drawing(), History(path), epochs=4, ckpt_path=checkpoint, weights_only=True)
    after = rows(path)
    assert [row["epoch"] for row in after] == ["1", "2", "3", "4"]
    assert after[:kept] == before[:kept]
    assert [row["val_nll"] for row in after] == ["0.0", "1.0", "2.0", "3.0"]


def test_waiting_for_data_is_told_from_work(tmp_path, monkeypatch):
    clock = [0.0]  # seconds: a real one would tell of the machine, too
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    class Slow(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[Tensor]:
            clock[0] += 3
            return (torch.ones(1),)

    class Lazy(Drawing):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            clock[0] += 1
            return super().training_step(batch, batch_idx)

    fit(Lazy(), History(tmp_path / "both.csv"), epochs=2, data=Slow())
    fit(Lazy(), History(tmp_path / "work.csv"), epochs=1)
    fit(Drawing(), History(tmp_path / "wait.csv"), epochs=1, data=Slow())
    told = {
        name: [(float(row["seconds"]), float(row["data_wait"])) for row in rows(tmp_path / f"{name}.csv")]
        for name in ("both", "work", "wait")
    }
    assert told == {"both": [(16, 0.75)] * 2, "work": [(4, 0)], "wait": [(12, 1)]}
