"""Take weights out of a head on scikit-learn's digits: a path from dense to one weight a class, the model to keep, and what
one weight a class can do once the backbone has learnt to make do with it."""

import torch
import torch.nn.functional as F

import bndl
from bndl.backbones import build
from bndl.data import load_splits

data = load_splits("digits")
torch.manual_seed(0)
model = build("small-cnn", 10, in_channels=1).model
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for _ in range(8):
    for rows in torch.randperm(len(data.train)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(data.train.inputs[rows]), data.train.labels[rows]).backward()
        optimizer.step()

model = bndl.convert(model)  # the same predictions, in non-negative form
path = bndl.sparsify(model, data.train, data.val, num_points=12, max_accuracy_drop=0.02, progress=False)
print("   nnz  weights a class  right  NLL")
for index, point in enumerate(path.points):
    mark = "<- chosen" if index == path.chosen else ""
    print(f"{point.nnz:6.3f} {point.weights_per_class:16.1f} {point.accuracy:6.1%} {point.nll:5.3f} {mark}")

sparse = path.best  # the backbone is shared with `model`, the head is its own
prediction = bndl.predict(sparse, data.test)
right = (prediction.labels == data.test.labels).float().mean()
print(f"\nwith {path.point.weights_per_class:.1f} weights a class, on the test part: accuracy {right:.1%}")

last = len(path) - 1  # one weight a class
taught = bndl.finetune(path, data.train, data.val, index=last, epochs=15, lr=3e-3, batch_size=64, progress=False)
for name, one in (("as it is", path[last]), ("fine-tuned", taught.model)):
    right = (bndl.predict(one, data.test).labels == data.test.labels).float().mean()
    print(f"with one weight a class, the backbone {name}: accuracy {right:.1%}")
