"""Report data made up from a seed: small, complete, exact; with names that try to break out, and with nothing measured."""

import base64
import struct
import zlib
from typing import Any

import numpy as np

Json = dict[str, Any]
NAMES = ("tench", "springer", "cassette player", "chain saw", "church", "French horn", "truck", "pump")
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "</script><script>document.title='owned'</script>",
    "<!-- {{title}} {{data}}",
    "\u202egnirts\u202c & \u2028 \U0001f41f",
    "a_very_long_name_without_any_space_" * 4,
    "'\"`${document.title='owned'}",
)


def sample(
    *,
    count: int = 240,
    num_classes: int = 6,
    num_features: int = 24,
    embedded: int = 18,
    images: bool = True,
    measured: bool = True,
    hostile: bool = False,
    seed: int = 0,
) -> Json:
    """Data of a report of ``count`` examples whose logits are theta Phi + b, all numbers true of each other.

    Args:
        embedded: how many of the features the page may edit; the others only show in the rest of a logit.
        images: whether there are pictures.
        measured: False leaves None wherever the schema allows it.
        hostile: class and file names that are markup.
    """
    rng = np.random.default_rng(seed)
    truth = rng.integers(num_classes, size=count)
    phi = _weights(rng, num_features, num_classes)
    theta = _activations(rng, truth, phi)
    bias = np.round(rng.uniform(0, 0.4, num_classes), 3)
    logits = (theta @ phi + bias).astype(np.float32)
    names = [HOSTILE[c] if hostile and c < len(HOSTILE) else _name(c) for c in range(num_classes)]
    state = _State(rng, theta, phi, bias, logits, truth, names, embedded, images, measured, hostile)
    return {
        "format": 1,
        "meta": state.meta(),
        "verdict": state.verdict(),
        "trust": state.trust(),
        "classes": [state.class_record(c) for c in range(num_classes)],
        "features": [state.feature_record(k) for k in range(embedded)],
        "examples": state.examples(),
        "mistakes": state.mistakes(),
        "thumbs": state.thumbs(),
        "faithfulness": _faithfulness(images) if measured else None,
        "method": {"limits": ["Weights are of the mean; a draw differs.", "Maps show where, not why."]},
    }


def _name(index: int) -> str:
    return NAMES[index] if index < len(NAMES) else f"class number {index}"


def _weights(rng: np.random.Generator, num_features: int, num_classes: int) -> np.ndarray:
    phi = rng.gamma(1.5, 0.6, (num_features, num_classes)) * (rng.random((num_features, num_classes)) < 0.35)
    phi[np.arange(num_features), np.arange(num_features) % num_classes] = rng.uniform(1.5, 3.0, num_features)
    return phi.astype(np.float32)


def _activations(rng: np.random.Generator, truth: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """Theta (N, K) in half floats: what belongs to the truth is active, and so is much else."""
    num_features, num_classes = phi.shape
    own = np.arange(num_features)[None] % num_classes == truth[:, None]
    theta = rng.gamma(0.8, 0.45, (len(truth), num_features)) * (rng.random((len(truth), num_features)) < 0.4)
    return (theta + own * rng.gamma(1.5, 0.45, theta.shape)).astype(np.float16).astype(np.float32)


def _b64(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()


def _figure(value: float, half: float) -> Json:
    return {"value": value, "low": value - half, "high": value + half}


class _State:
    """All arrays of one made-up report."""

    def __init__(
        self,
        rng: np.random.Generator,
        theta: np.ndarray,
        phi: np.ndarray,
        bias: np.ndarray,
        logits: np.ndarray,
        truth: np.ndarray,
        names: list[str],
        embedded: int,
        images: bool,
        measured: bool,
        hostile: bool,
    ) -> None:
        self.rng, self.theta, self.phi, self.bias, self.logits, self.truth = rng, theta, phi, bias, logits, truth
        self.names, self.embedded, self.images, self.measured, self.hostile = names, embedded, images, measured, hostile
        self.count, self.num_classes = logits.shape
        order = np.argsort(-logits, axis=1)
        self.label, self.runner = order[:, 0], order[:, 1]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.prob = odds.max(axis=1) / odds.sum(axis=1)
        self.flip = ((1 - self.prob) * 0.5).astype(np.float32)
        self.decile = np.empty(self.count, dtype=np.int64)
        for number, part in enumerate(np.array_split(np.argsort(self.flip, kind="stable"), 10)):
            self.decile[part] = number
        self.certain = self.flip < 0.1
        self.right = self.label == truth
        self.tiles = min(self.count, 120)

    def meta(self) -> Json:
        title = HOSTILE[1] if self.hostile else "Made-up fish and churches"
        return {
            "title": title, "run": "runs/made-up", "data": "made-up test", "created": "2025-11-16T09:00:00",
            "bndl": "0.0", "backbone": "resnet18", "about": ["Numbers from a seed, to look at the page with."],
            "classes": self.names, "num_examples": self.count, "num_features": len(self.phi),
            "num_used": len(self.phi), "images": self.images, "level": 0.05, "signed": False, "live": False,
        }  # fmt: skip

    def verdict(self) -> Json:
        accuracy = float(self.right.mean())
        pavpu = float((self.right == self.certain).mean())
        names = ("pavpu", "pavpu_baseline", "ece", "nll", "nnz", "weights_per_class", "features_per_decision")
        if not self.measured:
            return {"accuracy": _figure(accuracy, 0.02), **dict.fromkeys(names)}
        return {
            "accuracy": _figure(accuracy, 0.02), "pavpu": _figure(pavpu, 0.02), "pavpu_baseline": accuracy,
            "ece": _figure(0.021, 0.004), "nll": _figure(0.412, 0.02), "nnz": float((self.phi > 0).mean()),
            "weights_per_class": float((self.phi > 0).sum(axis=0).mean()), "features_per_decision": _figure(5.3, 0.2),
        }  # fmt: skip

    def trust(self) -> Json:
        deciles = []
        for number in range(10):
            part = self.decile == number
            accuracy = float(self.right[part].mean())
            deciles.append({
                "count": int(part.sum()), "accuracy": accuracy, "low": max(0.0, accuracy - 0.08),
                "high": min(1.0, accuracy + 0.05), "least": float(self.flip[part].min()),
                "most": float(self.flip[part].max()),
            })  # fmt: skip
        surest = self.right[np.argsort(self.flip, kind="stable")]
        risk = 1 - np.cumsum(surest) / np.arange(1, self.count + 1)
        counts = {
            f"{'' if sure else 'un'}certain_{'right' if good else 'wrong'}": int(
                ((self.certain == sure) & (self.right == good)).sum()
            )
            for sure in (True, False)
            for good in (True, False)
        }
        return {
            "by": "flip probability",
            "deciles": deciles,
            "reliability": [self._bin(number / 10) for number in range(10)],
            "risk": {"coverage": (np.arange(1, self.count + 1) / self.count).tolist(), "risk": risk.tolist()},
            "counts": counts,
        }

    def _bin(self, low: float) -> Json:
        part = (self.prob > low) & (self.prob <= low + 0.1)
        some = bool(part.any())
        confidence, accuracy = (float(v[part].mean()) if some else None for v in (self.prob, self.right))
        return {"low": low, "high": low + 0.1, "count": int(part.sum()), "confidence": confidence, "accuracy": accuracy}

    def class_record(self, c: int) -> Json:
        order = [int(k) for k in np.argsort(-self.phi[: self.embedded, c]) if self.phi[k, c] > 0][:12]
        mine = self.truth == c
        taken = np.bincount(self.label[mine & ~self.right], minlength=self.num_classes)
        return {
            "index": c, "name": self.names[c], "count": int(mine.sum()),
            "accuracy": _figure(float(self.right[mine].mean()), 0.05) if mine.any() and self.measured else None,
            "bias": float(self.bias[c]), "num_weights": int((self.phi[:, c] > 0).sum()),
            "features": [{"feature": k, **self._weight(k, c)} for k in order],
            "rest": float(self.phi[:, c].sum() - self.phi[order, c].sum()),
            "confused": [{"other": int(o), "count": int(taken[o])} for o in np.argsort(-taken)[:5] if taken[o]],
            "example": int(np.flatnonzero(mine)[0]) % self.tiles if self.images and mine.any() else None,
        }  # fmt: skip

    def _weight(self, k: int, c: int) -> Json:
        weight = float(self.phi[k, c])
        return {"weight": weight, "low": 0.7 * weight, "high": 1.4 * weight}

    def feature_record(self, k: int) -> Json:
        order = np.argsort(-self.theta[:, k])
        served = [int(c) for c in np.argsort(-self.phi[k]) if self.phi[k, c] > 0]
        pictures = [
            [{"id": int(row) % self.tiles, "example": int(row), "theta": float(self.theta[row, k]),
              "map": self.tiles + int(row) % self.tiles if self.measured else None} for row in part]
            for part in (order[:6], order[20:26])
        ]  # fmt: skip
        return {
            "feature": k, "label": f"f{k}", "mean": float(self.theta[:, k].mean()),
            "active": float((self.theta[:, k] > 0).mean()),
            "classes": [{"index": c, **self._weight(k, c)} for c in served],
            "top": pictures[0] if self.images else [], "moderate": pictures[1] if self.images else [],
        }  # fmt: skip

    def examples(self) -> Json:
        features = list(range(self.embedded))
        thumbs = np.arange(self.count) % self.tiles if self.images else np.full(self.count, -1)
        files = [f"<b>{HOSTILE[0]}</b>/{i}.jpg" if self.hostile else f"val/{i:05d}.jpg" for i in range(self.count)]
        arrays = {
            "id": (np.arange(self.count), "<u4"), "label": (self.label, "<u2"), "truth": (self.truth, "<u2"),
            "runner": (self.runner, "<u2"), "prob": (self.prob, "<f4"), "p": (self.flip * 0.4, "<f4"),
            "flip": (self.flip, "<f4"), "decile": (self.decile, "<u1"), "certain": (self.certain, "<u1"),
            "thumb": (thumbs, "<i4"), "logits": (self.logits, "<f4"), "theta": (self.theta[:, : self.embedded], "<f2"),
        }  # fmt: skip
        return {
            "count": self.count, "all": True, "names": files if self.measured else None,
            **{f"{name}_b64": _b64(values, kind) for name, (values, kind) in arrays.items()},
            "theta_features": features, "bias": self.bias.tolist(),
            "phi": {"features": features, "weights_b64": _b64(self.phi[: self.embedded], "<f4")},
        }  # fmt: skip

    def mistakes(self) -> list[Json]:
        wrong = sorted(
            np.flatnonzero(~self.right), key=lambda row: (not self.certain[row], self.flip[row], -self.prob[row])
        )[:24]
        return [
            {
                "row": int(row), "image": int(row) % self.tiles if self.images else None,
                "map": self.tiles + int(row) % self.tiles if self.images and self.measured else None,
                "map_truth": self.tiles + int(row + 1) % self.tiles if self.images and self.measured else None,
                "lime": self.tiles + int(row + 2) % self.tiles if self.images and self.measured else None,
                "lime_r2": 0.71 if self.measured else None, "lime_feature": 3 if self.measured else None,
                "predicted": self._side(int(row), int(self.label[row])),
                "true": self._side(int(row), int(self.truth[row])),
            }
            for row in wrong
        ]  # fmt: skip

    def _side(self, row: int, c: int) -> Json:
        terms = self.theta[row].astype(np.float64) * self.phi[:, c]
        order = [int(k) for k in np.argsort(-terms) if terms[k] > 0][:6]
        logit = float(terms.sum() + self.bias[c])
        listed = [
            {"feature": k, "value": float(terms[k]), "low": 0.6 * float(terms[k]), "high": 1.5 * float(terms[k])}
            for k in order
        ]
        rest = float(terms.sum() - terms[order].sum())
        return {"class": c, "logit": logit, "bias": float(self.bias[c]), "terms": listed, "rest": rest}

    def thumbs(self) -> Json:
        if not self.images:
            return {"sheets": [], "tiles": []}
        side, across = 32, 20
        rows = -(-2 * self.tiles // across)
        sheet = np.zeros((rows * side, across * side, 3), dtype=np.uint8)
        tiles = []
        for number in range(2 * self.tiles):
            y, x = divmod(number, across)
            picture = _picture(number % self.tiles, int(self.truth[number % self.tiles]), side, number >= self.tiles)
            sheet[y * side : (y + 1) * side, x * side : (x + 1) * side] = picture
            tiles.append([0, x * side, y * side, side, side])
        return {"sheets": [{"uri": _png(sheet), "width": across * side, "height": rows * side}], "tiles": tiles}


def _picture(seed: int, label: int, side: int, heat: bool) -> np.ndarray:
    """A blob whose colour tells the class; as a heat map, the blob alone."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side
    cx, cy = rng.uniform(0.3, 0.7, 2)
    blob = np.exp(-(((x - cx) ** 2 + (y - cy) ** 2) / 0.03))[..., None]
    colour = np.array([[220, 80, 60], [60, 140, 210], [230, 180, 40], [80, 170, 110], [150, 90, 190], [240, 240, 240]])
    ground = np.stack([90 + 80 * y, 110 + 60 * y, 120 + 50 * x], axis=-1)
    front = np.array([255, 200, 60]) if heat else colour[label % len(colour)]
    back = np.repeat(ground.mean(axis=-1, keepdims=True) * 0.6, 3, axis=-1) if heat else ground
    return (blob * front + (1 - blob) * back).astype(np.uint8) & 0xF8  # few colours: a small file


def _png(pixels: np.ndarray) -> str:
    height, width, _ = pixels.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 6)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _faithfulness(images: bool) -> Json:
    t = np.linspace(0, 1, 21)

    def curve(values: np.ndarray) -> Json:
        return {
            "fractions": t.tolist(), "mean": values.tolist(), "low": np.clip(values - 0.05, 0, 1).tolist(),
            "high": np.clip(values + 0.05, 0, 1).tolist(), "auc": _figure(float(values.mean()), 0.02),
        }  # fmt: skip

    terms = {"bndl": curve(0.9 * np.exp(-9 * t)), "random": curve(0.9 - 0.75 * t)}
    if not images:
        return {"images": 0, "deletion": None, "insertion": None, "feature_deletion": terms, "randomisation": None}
    return {
        "images": 200,
        "deletion": {"bndl": curve(0.9 * np.exp(-4 * t)), "random": curve(0.9 - 0.8 * t),
                     "dense": curve(0.9 * np.exp(-3 * t))},
        "insertion": {"bndl": curve(0.9 - 0.8 * np.exp(-5 * t)), "random": curve(0.1 + 0.8 * t), "dense": None},
        "feature_deletion": terms,
        "randomisation": [{"module": "fc", "correlation": 0.41}, {"module": "layer4", "correlation": 0.05}],
    }  # fmt: skip
