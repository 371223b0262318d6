"""What a model's graph proves: which layer makes its output, and whether what enters a layer is non-negative."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

__all__ = ["input_is_nonnegative", "num_calls", "output_module", "trace"]

# what makes its result non-negative, whatever comes in
_MAKES = {
    nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Softplus, nn.Hardsigmoid, nn.Softmax,
    torch.relu, F.relu, F.relu6, torch.sigmoid, F.softplus, torch.abs, torch.square, torch.exp, F.softmax, torch.softmax,
    "relu", "relu_", "sigmoid", "abs", "square", "exp", "softmax",
}  # fmt: skip
# what keeps non-negative input non-negative
_KEEPS = {
    nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.Unflatten,
    torch.flatten, torch.mean, torch.sum, torch.squeeze, torch.reshape, F.dropout, F.avg_pool2d, F.adaptive_avg_pool2d,
    F.max_pool2d, F.adaptive_max_pool2d, torch.amax, operator.getitem,
    "flatten", "view", "reshape", "mean", "sum", "squeeze", "contiguous", "amax", "float", "to", "permute", "transpose",
}  # fmt: skip
_JOINS = {torch.add, operator.add, operator.iadd, torch.mul, operator.mul, operator.imul, "add", "add_", "mul", "mul_"}
_DEEPEST = 100  # steps back from the head; a proof that takes longer is not looked for
_VIEWS = {
    torch.flatten, torch.reshape, torch.squeeze, torch.chunk, torch.split, torch.narrow, torch.select, operator.getitem,
    "flatten", "view", "view_as", "reshape", "squeeze", "unsqueeze", "chunk", "split", "narrow", "select", "detach",
    "permute", "transpose", "t", "unbind", "contiguous", "expand",
}  # fmt: skip
_IN_PLACE = {operator.iadd, operator.isub, operator.imul, operator.itruediv}
# what may follow the head without changing which class wins
_AFTER_HEAD = {
    nn.Softmax, nn.LogSoftmax, nn.Identity, F.softmax, F.log_softmax, torch.softmax, torch.log_softmax,
    "softmax", "log_softmax", "squeeze", "float",
}  # fmt: skip


class _Tracer(fx.Tracer):
    """Looks into containers and users' modules; whatever torch itself defines is a leaf."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.Linear):  # also a subclass of the user's: it may be the head
            return True
        return type(m).__module__.startswith("torch.nn") and not isinstance(m, nn.Sequential)


def trace(model: nn.Module) -> fx.Graph | None:
    """The graph of the model in ``eval()``, or None when torch.fx cannot follow its code."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()  # some models give more than their head's output while they train
    try:
        return _Tracer().trace(model)
    except Exception:  # tracing runs the model's own code on proxies: anything may be raised
        return None
    finally:
        for module, mode in modes:
            module.training = mode


def output_module(graph: fx.Graph, model: nn.Module) -> str | None:
    """Path of the module whose result the model returns, looking through a softmax; None if it is no module's."""
    node: Any = next(node for node in graph.nodes if node.op == "output").args[0]
    while isinstance(node, fx.Node) and _kind(node, model) in _AFTER_HEAD:
        node = node.args[0] if node.args else None
    return str(node.target) if isinstance(node, fx.Node) and node.op == "call_module" else None


def num_calls(graph: fx.Graph, path: str) -> int:
    """How often the module at ``path`` is called in one pass."""
    return sum(node.op == "call_module" and node.target == path for node in graph.nodes)


def input_is_nonnegative(graph: fx.Graph, model: nn.Module, path: str) -> bool:
    """Whether the graph proves that everything that enters the module at ``path`` is >= 0."""
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target == path]
    prover = _Prover(model)
    return bool(calls) and all(bool(call.args) and prover.holds(call.args[0], via=call) for call in calls)


def _kind(node: fx.Node, model: nn.Module) -> Any:
    """What a node does: a module's class, a function, or a method's name."""
    return type(model.get_submodule(str(node.target))) if node.op == "call_module" else node.target


class _Prover:
    """Walks back from a node to what makes it non-negative; each node once."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.known: dict[fx.Node, bool] = {}
        self.depth = 0

    def holds(self, node: Any, *, via: fx.Node) -> bool:
        """Whether the node's result, as ``via`` receives it, is >= 0."""
        if isinstance(node, int | float):
            return node >= 0
        if not isinstance(node, fx.Node) or node.op not in ("call_module", "call_function", "call_method"):
            return False
        if self._is_changed_in_place(node, via=via):
            return False
        if node not in self.known:
            self.known[node], self.depth = False, self.depth + 1
            self.known[node] = self.depth <= _DEEPEST and self._follows(node)
            self.depth -= 1
        return self.known[node]

    def _follows(self, node: fx.Node) -> bool:
        kind, args = _kind(node, self.model), node.args
        if kind in _MAKES:
            return True
        if kind in _KEEPS:
            return bool(args) and self.holds(args[0], via=node)
        if kind in _JOINS:
            return not node.kwargs and all(self.holds(arg, via=node) for arg in args[:2])
        if kind is torch.cat and args and isinstance(args[0], list | tuple):
            return all(self.holds(arg, via=node) for arg in args[0])
        return False

    def _is_changed_in_place(self, node: fx.Node, *, via: fx.Node) -> bool:
        """Whether anything but ``via`` may write a negative number into the node's result."""
        for user in node.users:
            if user is via or not user.args or user.args[0] is not node:
                continue
            kind = _kind(user, self.model)
            if self._writes(user) and kind not in _MAKES:
                return True
            if kind in _VIEWS and self._is_changed_in_place(user, via=via):
                return True
        return False

    def _writes(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.model.get_submodule(str(node.target)), "inplace", False))
        if node.kwargs.get("inplace") or "out" in node.kwargs or node.target in _IN_PLACE:
            return True
        name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
        return name.endswith("_") and not name.endswith("__")
