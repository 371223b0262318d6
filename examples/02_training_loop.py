"""Use the layer in a training loop of your own: any optimizer, one more term in the loss."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import bndl

X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
train, test = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).split([1200, len(y) - 1200])

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), bndl.DecisionLayer(64, 10))
objective = bndl.Objective(beta=3e-3)  # a larger beta removes more weights
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

model.train()  # draws from the posterior
for _ in range(600):
    rows = train[torch.randint(len(train), (128,))]
    loss = F.cross_entropy(model(X[rows]), y[rows]) + bndl.kl(model, num_data=len(train), objective=objective)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()  # the mean: deterministic, eats and gives what nn.Linear does
print(f"accuracy {(model(X[test]).argmax(1) == y[test]).float().mean():.1%}")
print(f"weights in use: {model[-1].num_weights()} of {model[-1].weight.numel()}")
