"""A network as one ONNX file that says how sure it is and why; then everything with ONNX Runtime and numpy alone."""

import json
import tempfile
from pathlib import Path

import onnxruntime
import torch
import torch.nn.functional as F

import bndl
from bndl.backbones import build
from bndl.data import load_splits
from bndl.export import FromPixels

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

pixels = torch.stack([data.test.read(index) for index in range(len(data.test))])  # uint8, as from a camera
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "digits.onnx")
    written = bndl.export(FromPixels(model), file, pixels[:16], reasons=3, classes=data.test.classes)
    session = onnxruntime.InferenceSession(file)  # from here on neither bndl nor torch is needed
differs = max(written.differences.values())
print(f"{written.size / 1e3:.0f} kB, {len(written.outputs)} outputs, at most {differs:.0e} from bndl.predict")

names = json.loads(session.get_modelmeta().custom_metadata_map["bndl"])["classes"]
ports = [port.name for port in session.get_outputs()]
said = dict(zip(ports, session.run(None, {"images": pixels.numpy()}), strict=True))
print(f"{said['certain'].mean():.1%} of {len(pixels)} decisions are certain; the least sure:")
for row in said["flip_probability"].argsort()[::-1][:3]:
    terms = zip(said["reason_features"][row], said["reason_terms"][row], strict=True)
    why = ", ".join(f"feature {feature} adds {term:.1f}" for feature, term in terms if feature >= 0)
    doubt = f"{names[said['labels'][row]]} or {names[said['runner_up'][row]]}"
    print(f"  image {row}: {doubt}, a flip has {said['flip_probability'][row]:.0%}; {why}")
print(f"accuracy {(said['labels'] == data.test.labels.numpy()).mean():.1%}")
