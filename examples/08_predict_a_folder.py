"""Predict on a folder of images, of any size, into a CSV file: what `bndl predict` does, from Python."""

import csv
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image

import bndl
from bndl.backbones import build
from bndl.data import load_splits
from bndl.data.images import decode
from bndl.stream import Predictor, Settings, open_source, predict_to_file

data = load_splits("digits")
torch.manual_seed(0)
model = build("small-cnn", 10, in_channels=1).model
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for _ in range(8):
    for rows in torch.randperm(len(data.train)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(data.train.inputs[rows]), data.train.labels[rows]).backward()
        optimizer.step()

model = bndl.convert(model)
bndl.fit(model, data.train, data.val, progress=False)  # fits the head's doubt

with tempfile.TemporaryDirectory() as folder:
    photos, out = Path(folder, "photos"), Path(folder, "predictions.csv")
    for index in range(len(data.test)):
        file = photos / f"{index % 7}" / f"{index:04d} is {data.test.labels[index]}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.test.read(index)[0].numpy()).save(file)

    predictor = Predictor(model.eval(), data.test.classes, lambda path: decode(path, size=8)[:1])
    source = open_source(photos, in_features=predictor.layer.in_features, read=predictor.read)
    summary = predict_to_file(
        predictor, source, out, settings=Settings(reasons=2)
    )  # in shards: can be stopped, resumed
    table = list(csv.DictReader(out.open(newline="")))

print(f"{summary.rows} images, {summary.certain / summary.rows:.1%} of the decisions certain; the least sure:")
for row in sorted(table, key=lambda row: -float(row["flip_probability"]))[:3]:
    doubt = f"{row['class']} or {row['runner_up']}, a flip has {float(row['flip_probability']):.0%}"
    print(f"  {row['source']}: {doubt}; because of features {row['reasons']}")
right = [row["source"].endswith(f"is {row['class']}.png") for row in table]
print(f"accuracy {sum(right) / len(right):.1%}")
