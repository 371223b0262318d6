"""A classifier that learnt a shortcut: find the feature behind a mistake, turn it down, count what that fixes and breaks.

All threes that it learns from carry a bright stamp in a corner, and on two of three the digit is lost, so the network takes
the stamp for a three. Then other digits come with a stamp.
"""

import torch

import bndl
from bndl.backbones import SmallCNN
from bndl.data import Holdout, LabelledSet, as_float, load_splits

STAMPED = 3


def tensors(part: LabelledSet) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*(part[i] for i in range(len(part))), strict=True)
    return as_float(torch.stack(images)), torch.tensor(labels)


def stamped(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """A bright square of four pixels in the upper left corner of the chosen ones."""
    images = images.clone()
    images[chosen, :, :2, :2] = 1.0
    return images


def spoilt(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Threes with a stamp, two of three without the digit."""
    threes = (labels == STAMPED).nonzero().flatten()
    images = images.clone()
    images[threes[torch.arange(len(threes)) % 3 > 0]] = 0.0
    return stamped(images, labels == STAMPED)


torch.set_num_threads(1)  # sums in another order would make it another network
splits = load_splits("digits", holdout=Holdout(val=0.2, test=0.4))
(train_x, train_y), (val_x, val_y), (test_x, test_y) = (tensors(p) for p in (splits.train, splits.val, splits.test))
train_x, val_x = spoilt(train_x, train_y), spoilt(val_x, val_y)

torch.manual_seed(0)
model = bndl.convert(SmallCNN(10, num_features=32))
train, val = (
    [(x[rows], y[rows]) for rows in torch.randperm(len(y)).split(64)] for x, y in ((train_x, train_y), (val_x, val_y))
)
bndl.fit(model, train, val, freeze=False, epochs=30, lr=5e-3)
model = bndl.sparsify(model, train, val, features_per_class=4).best.eval()

# what users send: every other digit has the stamp, whatever it is
half = torch.arange(len(test_y)) < len(test_y) // 2
seen_x = stamped(test_x, torch.rand(len(test_y), generator=torch.Generator().manual_seed(0)) < 0.5)
pred = bndl.predict(model, seen_x[half])
wrong = (pred.labels != test_y[half]).nonzero().flatten()
threes = wrong[pred.labels[wrong] == STAMPED]
worst = threes[pred.confidence[threes].argmax()]
why = bndl.explain(model, seen_x[half][worst : worst + 1], against=int(test_y[worst]))[0]
print(f"{len(wrong)} of {int(half.sum())} wrong, {len(threes)} of them taken for a {STAMPED}. The surest: {why.text()}")

# the first half shows which feature it is, the second half, not looked at so far, says what dropping it is worth
editor = bndl.Editor(model)
gains = {}
for edit in (bndl.Edit(t.feature, why.target, factor) for t in why.terms for factor in (0.0, 0.25, 0.5, 0.75)):
    editor.apply(edit)
    effect = editor.effect([(seen_x[half], test_y[half])])
    gains[edit] = len(effect.fixed) - len(effect.broken)
    editor.undo()
best = max(gains, key=gains.get)
editor.apply(best)
after = editor.effect([(seen_x[~half], test_y[~half])])
print(f"\nf{best.feature} counts {best.factor:g} times for {best.target}; on the other half it {after.text()}")
