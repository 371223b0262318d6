"""Give a trained network calibrated probabilities and a test of each decision, without touching its backbone."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bndl

X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
rest, test = train_test_split(range(len(y)), test_size=600, stratify=y, random_state=0)
train, held_out = train_test_split(rest, test_size=400, stratify=y[rest], random_state=0)

# a network that somebody trained
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(200):
    loss = nn.functional.cross_entropy(model(X[train]), y[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# the three lines
model = bndl.convert(model)
bndl.fit(model, DataLoader(TensorDataset(X[held_out], y[held_out]), batch_size=256))
pred = bndl.predict(model, X[test])

right = pred.labels == y[test]
print(f"accuracy {right.float().mean():.1%}; where it is certain {right[pred.certain].float().mean():.1%}")
print(f"uncertain: {int((~pred.certain).sum())} of {len(test)}, of which wrong: {int((~right[~pred.certain]).sum())}")
for i in pred.flip_probability.argsort(descending=True)[:3].tolist():
    print(
        f"  says {pred.labels[i]} at {pred.confidence[i]:.0%}, might be {pred.runner_up[i]}: "
        f"flips with probability {pred.flip_probability[i]:.2f}; it is {y[test][i]}"
    )
