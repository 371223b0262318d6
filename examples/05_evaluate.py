"""Measure a dense network and the same one with a decision layer, on scikit-learn's digits: figures, noise, corruptions."""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

import bndl
from bndl import plots
from bndl.backbones import build
from bndl.data import load_splits
from bndl.evaluation import table_of

data = load_splits("digits")
torch.manual_seed(0)
model = build("small-cnn", 10, in_channels=1).model
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for _ in range(8):
    for rows in torch.randperm(len(data.train)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(data.train.inputs[rows]), data.train.labels[rows]).backward()
        optimizer.step()

others = {
    "noise": torch.randint(256, (300, 1, 8, 8), dtype=torch.uint8),
    "upside down": data.test.inputs.flip(2),
}
options = {"ood": others, "shift": {"gaussian_noise": (1, 3, 5), "contrast": (1, 3, 5)}, "num_resamples": 300}
dense = bndl.evaluate(model, data.test, **options)

model = bndl.convert(model)
bndl.fit(model, data.train, data.val, epochs=10, progress=False)
ours = bndl.evaluate(model, data.test, **options)

both = {"BNDL": ours, "dense": dense}
print(table_of(both))
with tempfile.TemporaryDirectory() as folder:  # yours would stay
    ours.save(Path(folder, "evaluation.json"))
    picture = plots.overview(both, Path(folder, "evaluation.png"))
    print(f"\npicture of {picture.stat().st_size // 1000} kB")
print(f"accuracy {ours.figures['accuracy'].value:.1%}, dense: accuracy {dense.figures['accuracy'].value:.1%}")
