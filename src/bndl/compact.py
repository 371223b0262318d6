"""Compact inference: the same decisions from the features that still have a weight, sparse where that is faster."""

from typing import Any

import torch
from torch import Tensor, nn

from bndl.convert import find_layer, replace_everywhere
from bndl.errors import InputError
from bndl.layer import ACTIVE_ABOVE, DecisionLayer, Posterior, _linear
from bndl.sparse_product import MeanProduct

__all__ = ["CompactLayer", "compact", "index_fault"]


def compact(model: nn.Module) -> nn.Module:
    """Drop the features that no class uses any more; same outputs, less work.

    The decision layer is swapped for a :class:`CompactLayer` in place, as by :func:`bndl.convert`, and the model returned
    (a bare layer comes back as a new one, the given layer unchanged). ``copy.deepcopy(model)`` first to keep the
    full head: a dropped feature does not come back. Weights up to 1e-5 count as none and become exactly 0, which moves a
    logit by at most 1e-5 of the sum of its features. ``bndl.predict`` with the same seed gives the same probabilities, to
    about 1e-5.
    A feature that is NaN or infinite reaches the classes that use it, or all as with the full head: that depends on the
    product that is fastest.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, sparse from training, or the layer itself. A compact model may
            be made compact again, after more of its weights have gone.
    Raises:
        InputError: the layer has no weight left, or hooks that would be lost.
    """
    layer = find_layer(model)
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise InputError("the decision layer has forward hooks, which compact would lose: remove them first.")
    new = CompactLayer.of(layer)
    if model is layer:
        return new
    replace_everywhere(model, layer, new)
    return model


class CompactLayer(DecisionLayer):
    """A decision layer over those of its features that have a weight; see :func:`compact`, which makes it.

    It takes the same ``h`` and gives the same logits, posteriors and seeded draws as the layer it was made from, but its K
    (``num_features``, the columns of ``theta`` and ``phi``) counts kept features only. Column i is feature ``kept[i]`` of
    the ``total_features`` there were. With a dense map or a shape that depends on the example, all features are still
    read, and only what they give is cut.

    In ``eval()`` and without gradients a forward pass uses weights laid out once (see :mod:`bndl.sparse_product`), made
    anew when a parameter changes. What torch does not count as a change, a write through ``.data``, is not seen: call
    :meth:`refresh` after one. Compiled or exported, it is the dense product of the kept features.

    Args:
        in_features: size of the last dim of ``h``, as before.
        out_features: number of classes C.
        bias: as for :class:`bndl.DecisionLayer`.
        device: as for ``nn.Linear``.
        dtype: as for ``nn.Linear``.
        num_kept: how many features are kept. A new layer keeps the first and has weights of 0, to be loaded.
        **settings: as for :class:`bndl.DecisionLayer`.
    """

    kept: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        num_kept: int,
        **settings: Any,
    ) -> None:
        with torch.device("meta"):  # the full layer's dims, not its memory
            super().__init__(in_features, out_features, bias, **settings)
        if not 1 <= num_kept <= self.total_features:
            raise InputError(f"num_kept must lie in 1..{self.total_features}, the number of features; got {num_kept}.")
        for name, parameter in list(self.named_parameters()):
            dims, axis = list(parameter.size()), self._axis(name)
            if axis is not None:
                dims[axis] = num_kept
            self._put(name, nn.Parameter(torch.zeros(dims, device=device, dtype=dtype)))
        self.register_buffer("kept", torch.arange(num_kept, device=device))
        self._product: MeanProduct | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, layer: DecisionLayer) -> "CompactLayer":
        """The features of a layer that have at least one weight, with their posteriors; the layer is left as it is."""
        phi = layer.phi().mean
        active = phi > ACTIVE_ABOVE
        columns = active.any(dim=0).nonzero().flatten()
        if not len(columns):
            raise InputError(
                "the decision layer has no weight left, so there is nothing to keep: train it with a smaller beta or "
                "alpha_phi before making it compact."
            )
        new = cls(**{**layer.settings, "num_kept": len(columns)}, device=layer.weight.device)
        for name, parameter in layer.named_parameters():
            axis = new._axis(name)
            taken = parameter.clone() if axis is None else parameter.index_select(axis % parameter.dim(), columns)
            new._put(name, nn.Parameter(taken, requires_grad=parameter.requires_grad))
        new.weight.masked_fill_(((phi > 0) & ~active)[:, columns], 0.0)
        new.kept.copy_(layer.kept[columns] if isinstance(layer, CompactLayer) else columns)
        new.origin = layer.origin
        return new.train(layer.training)

    @property
    def total_features(self) -> int:
        """K of the layer that this one was made from."""
        return super().num_features

    @property
    def num_features(self) -> int:
        """K, the number of kept features."""
        return len(self.kept) if "kept" in self._buffers else self.total_features

    @property
    def feature_ids(self) -> Tensor:
        """(K,) which features are kept."""
        return self.kept

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build an equal layer; which features are kept is in the state dict."""
        return {**super().settings, "num_kept": self.num_features}

    def all_weights(self) -> int:
        """How many a decision could use in the layer that this one was made from."""
        K = self.total_features
        return K * self.out_features + (0 if self.dense_map is None else K * K)

    def reset_parameters(self) -> None:
        """Refused: a new start needs all features."""
        if "kept" in self._buffers:
            raise InputError("a compact layer cannot start again without the dropped features: convert the model anew.")

    def copy_linear(self, linear: nn.Linear) -> None:
        """Refused: a dense head's predictions need all features."""
        raise InputError("a compact layer cannot take over a dense head, which needs all features: use bndl.convert.")

    def features(self, h: Tensor) -> Tensor:
        """``h`` (..., in_features) -> what enters ``f_m``: the kept features (..., K); all of them for a dense map."""
        if self.dense_map is not None:
            return super().features(h)
        if not self.signed:
            return h if self.num_features == self.in_features else h.index_select(-1, self.kept)
        sign = torch.where(self.kept < self.in_features, 1.0, -1.0).to(h.dtype)
        return (h.index_select(-1, self.kept % self.in_features) * sign).clamp_min(0)

    def theta(self, h: Tensor) -> Posterior:
        """Posterior of the kept theta: ``h`` (..., in_features) -> mean (..., K), shape (K,), (..., 1) or (..., K)."""
        if self.theta_shape_map is None:
            assert self.theta_raw_shape is not None
            return Posterior(self._theta_mean(h), self._shape(self.theta_raw_shape))
        return Posterior(self._theta_mean(h), self._shape(_linear(super().features(h), self.theta_shape_map)))

    def forward(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (..., C) of features ``h`` (..., in_features): a draw in ``train()``, the mean in ``eval()``."""
        if self.training or torch.is_grad_enabled() or not _is_plain(h, self.in_features):
            return super().forward(h, generator)
        try:
            product = self._current_product()
            if product is None:
                return super().forward(h, generator)
            device = "cpu" if h.is_cpu else h.device.type  # of a short call, a third is questions like this one
            if torch.is_autocast_enabled(device):
                with torch.autocast(device_type=device, enabled=False):
                    return self._mean_logits(h, product)
            logits = self._mean_logits(h, product)
            return logits if h.dtype is torch.float32 else logits.to(h.dtype)
        except RuntimeError:  # transforms of torch.func know the full layer's products only
            return super().forward(h, generator)

    def refresh(self) -> None:
        """Forget the laid-out weights; the next forward pass makes them anew."""
        self._product = None

    def train(self, mode: bool = True) -> "CompactLayer":
        """As for any module; the laid-out weights are dropped on the way to training."""
        if mode:
            self.refresh()
        super().train(mode)
        return self

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"{super().extra_repr()}, kept {self.num_features} of {self.total_features} features"

    def _theta_mean(self, h: Tensor) -> Tensor:
        features = self.features(h)
        mapped = features if self.dense_map is None else _linear(features, self.dense_map)
        return (mapped - self.alpha_theta if self.alpha_theta else mapped).relu()

    def _mean_logits(self, h: Tensor, product: MeanProduct) -> Tensor:
        flat = h.dtype is torch.float32 and h.dim() == 2  # for one example each call of torch is felt
        rows = h if flat else h.float().reshape(-1, self.in_features)
        theta = rows if product.whole else self._theta_mean(rows)
        if product.whole and self.alpha_theta:
            theta = rows - self.alpha_theta
        logits = product(theta)
        return logits if flat else logits.view(*h.size()[:-1], self.out_features)

    def _current_product(self) -> MeanProduct | None:
        """The laid-out weights of the parameters as they are now; None where there are none."""
        weight, bias, kept = self._parameters.get("weight"), self._parameters.get("bias"), self._buffers["kept"]
        if weight is None or kept is None or (bias is None and self.bias is not None):
            return None  # parametrised or pruned: what stands for it may be another each time
        try:
            own = () if bias is None else (id(bias), bias.data_ptr(), bias._version)
            state = (self.alpha_phi, id(weight), weight.data_ptr(), weight._version, id(kept), kept._version, *own)
        except RuntimeError:  # tensors of inference mode do not count their changes
            return None
        if self._product is None or self._product.state != state:
            mean = self.phi().mean
            if mean.dtype != torch.float32:
                return None
            direct = (kept, self.in_features) if not self.signed and self.dense_map is None else None
            product = MeanProduct(mean, self.offset(), columns=direct, state=state)
            given = [tensor for tensor in (weight, bias, kept) if tensor is not None]
            product.owners = [*given, *(tensor.detach() for tensor in given)]  # nothing else gets their ids or memory
            self._product = product
        return self._product

    def _axis(self, name: str) -> int | None:
        """Which dim of a parameter runs over the kept features; None for those that are taken whole."""
        axes = {"weight": 1, "phi_raw_shape": -1, "theta_raw_shape": 0, "dense_map.weight": 0, "dense_map.bias": 0}
        if self.theta_shape == "entry":
            axes |= {"theta_shape_map.weight": 0, "theta_shape_map.bias": 0}
        return axes.get(name)

    def _put(self, name: str, parameter: nn.Parameter) -> None:
        *path, leaf = name.split(".")
        module = self.get_submodule(".".join(path))
        setattr(module, leaf, parameter)
        if isinstance(module, nn.Linear):
            module.out_features = len(parameter)

    def _apply(self, fn: Any, recurse: bool = True) -> "CompactLayer":
        self.refresh()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        self.refresh()
        given = state_dict.get(f"{prefix}kept")
        fault = None if given is None or given.is_meta else index_fault(given, self.total_features)
        if fault:
            error_msgs.append(fault)
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_product": None}


def index_fault(kept: Tensor, total_features: int) -> str | None:
    """What is wrong with an index of kept features, (K,) int64, ascending, in 0..total_features - 1; None if nothing."""
    if kept.dtype != torch.int64:
        return f"the index of kept features holds {kept.dtype}, not int64"
    if len(kept) and not 0 <= int(kept.min()) <= int(kept.max()) < total_features:
        return f"the index of kept features leaves its range, 0..{total_features - 1}"
    if not (kept.diff() > 0).all():
        return "the index of kept features is not in ascending order"
    return None


def _is_plain(h: Tensor, in_features: int) -> bool:
    """Whether these are features that the laid-out weights can be used on, in a plain run of the program."""
    return (
        (h.dtype is torch.float32 or h.dtype is torch.bfloat16 or h.dtype is torch.float16)
        and h.dim() > 0
        and h.size(-1) == in_features
        and not torch.compiler.is_compiling()  # nor exporting
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    )
