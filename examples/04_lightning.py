"""Subclass the Lightning module: label smoothing in place of the plain cross entropy, on scikit-learn's digits."""

import logging
import tempfile

import lightning as L
import torch
import torch.nn.functional as F

import bndl
from bndl.backbones import build
from bndl.data import load_splits
from bndl.train import Augment, Classifier, Loaders, Optimization, loader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Smoothed(Classifier):
    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        smooth = F.cross_entropy(self(inputs), labels, label_smoothing=0.05)
        return smooth + bndl.kl(self.model, self.num_data, beta=self.beta())


data = load_splits("digits")
torch.manual_seed(0)
model = bndl.convert(build("small-cnn", 10, in_channels=1).model)
optimization = Optimization(optimizer="adamw", lr=5e-3, weight_decay=0.01)
module = Smoothed(model, num_data=len(data.train), optimization=optimization, augment=Augment("cifar", 8))
with tempfile.TemporaryDirectory() as folder:
    trainer = L.Trainer(max_epochs=10, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, accelerator="cpu", default_root_dir=folder)  # fmt: skip
    trainer.fit(module, datamodule=Loaders(data.train, data.val, batch_size=64))

prediction = bndl.predict(model, loader(data.test, batch_size=256))
print(
    f"accuracy {(prediction.labels == data.test.labels).float().mean():.1%}, certain {prediction.certain.float().mean():.0%}"
)
