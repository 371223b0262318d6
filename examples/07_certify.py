"""Which features are provably the only ones that explain the logits? First a planted problem, then a digit classifier."""

import torch

import bndl
from bndl.certify import certify_factors, synthetic
from bndl.certify.recovery import factorize, match
from bndl.data import load_splits
from bndl.features import FeatureSet

# A problem whose factors we know: the certificate names the features that every factorisation must have.
problem = synthetic.planted(seed=1)
said = certify_factors(problem.theta, problem.phi)
found = factorize(problem.logits, 6, restarts=1)[0]
cosines = match(found.theta, problem.theta)
for finding in said.theta:
    print(f"feature {finding.feature}: {finding.verdict:<13} found again with cosine {cosines[finding.feature]:.4f}")
    print(f"           {finding.reason}")
assert all(cosines[k] > 0.99 for k in said.identifiable)

# A real one: 64 pixels as features, ten digits. 64 features are more than 10 classes, so the theorem has nothing to say;
# with one weight a class it has, and the accuracy shows what that costs.
data = load_splits("digits")
pixels, labels = data.train.inputs.flatten(1).float() / 255, data.train.labels
test, truth = data.test.inputs.flatten(1).float() / 255, data.test.labels
layer = bndl.convert(torch.nn.Linear(64, 10), features="nonnegative")
bndl.fit(layer, FeatureSet(pixels, labels), epochs=40, progress=False)
print(f"\nevery weight: {bndl.certify(layer, pixels).reason}")
print(f"accuracy {(bndl.predict(layer, test).labels == truth).float().mean():.1%}")

with torch.no_grad():
    kept = (layer.weight * pixels.mean(dim=0)).topk(1, dim=1)
    layer.weight.mul_(torch.zeros_like(layer.weight).scatter(1, kept.indices, 1))
sparse = bndl.certify(layer, pixels)
right = (bndl.predict(layer, test).labels == truth).float().mean()
print(f"one weight a class: {len(sparse.identifiable)} of {sparse.num_active} features certified, {right:.0%} right")
