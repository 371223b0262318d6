"""Why the model decided as it did: the terms of a logit with their intervals, why not another class, and where."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from bndl.convert import find_layer
from bndl.decide import Decider
from bndl.errors import InputError
from bndl.explain.arguments import Asked, whole
from bndl.explain.classes import feature_name
from bndl.explain.contributions import contribution_map, contributions, has_contribution_map
from bndl.explain.intervals import difference_interval, product_interval
from bndl.explain.maps import feature_maps, features_and_maps
from bndl.features import evaluating, features_of, iterate, split_batch
from bndl.layer import DecisionLayer
from bndl.prediction import Prediction

__all__ = ["Explanation", "Term", "explain"]

Classes: TypeAlias = int | Tensor | Sequence[int] | None
_ROUNDING = 1e-3  # of a value: without noise an interval is as narrow as that
_NOISY = "  (mean beyond its interval: very noisy)"


@dataclass(frozen=True)
class Term:
    """One term of a logit, or of a difference of two logits.

    The value is the posterior's mean, so that values add up; the interval is central (5 % below and above it, by default).
    The noisier a feature, the more skewed its posterior: the mean of a very noisy one lies beyond the interval.

    Attributes:
        feature: its number among all features; in a signed layer, ``in_features`` and above are the negative parts.
        value: mean of theta_k Phi_kc, >= 0; of a difference theta_k (Phi_ka - Phi_kb), of any sign.
        low: of the posterior's central interval.
        high: of the posterior's central interval.
        theta: how active the feature is.
        weight: Phi_kc, or the difference of two.
    """

    feature: int
    value: float
    low: float
    high: float
    theta: float
    weight: float

    @property
    def beyond(self) -> bool:
        """Whether the mean lies outside its interval, by more than rounding: the feature is very noisy."""
        slack = _ROUNDING * abs(self.value)
        return self.value < self.low - slack or self.value > self.high + slack


@dataclass(frozen=True)
class Explanation:
    """Why one example was decided as it was.

    ``bias``, the ``terms`` and the ``rest`` add up to the logit of ``target``. The ``differences``, ``difference_rest`` and
    ``bias - against_bias`` add up to ``logit - against_logit``. The ``map`` adds up to ``logit - bias``.

    Attributes:
        label: the decision.
        target: the class whose logit is taken apart.
        runner_up: the class that came second.
        probability: of the label.
        p_value: of the decision, see :class:`bndl.Prediction`.
        certain: whether that is small enough.
        logit: mean logit of the target.
        bias: of the target.
        terms: those above 0, the largest first, at most ``top``.
        rest: sum of the terms that are not listed.
        num_terms: how many terms are above 0, listed or not.
        in_features: what enters the layer; features from this number on are negative parts.
        against: the other class, or None.
        against_logit: its mean logit.
        against_bias: its bias.
        differences: why the target and not the other: the largest of either sign first, at most ``top``.
        difference_rest: sum of those that are not listed.
        map: (H, W) on the CPU, where ``logit - bias`` comes from; None where features are no averages of a map.
    """

    label: int
    target: int
    runner_up: int
    probability: float
    p_value: float
    certain: bool
    logit: float
    bias: float
    terms: tuple[Term, ...]
    rest: float
    num_terms: int
    in_features: int
    against: int | None = None
    against_logit: float | None = None
    against_bias: float | None = None
    differences: tuple[Term, ...] = ()
    difference_rest: float = 0.0
    map: Tensor | None = field(default=None, compare=False)

    def text(self, classes: Sequence[str] | None = None) -> str:
        """A few lines for people; ``classes`` are the names."""
        name = _namer(classes)
        sure = "certain" if self.certain else "uncertain"
        lines = [f"{name(self.label)}: {self.probability:.1%}, {sure} (p = {self.p_value:.2g})"]
        share = f"{len(self.terms)} of {self.num_terms} features"
        lines += [f"score of {name(self.target)}: {self.logit:.3f} = {self.bias:.3f} bias + {share}:"]
        lines += self._lines(self.terms, self.rest, self.num_terms - len(self.terms))
        if self.against is not None and self.against_logit is not None and self.against_bias is not None:
            if self.against == self.target:
                return "\n".join([*lines, f"why not {name(self.against)}: it is the same class, nothing to compare"])
            gap, shift = self.logit - self.against_logit, self.bias - self.against_bias
            said = f"ahead by {gap:.3f} =" if gap >= 0 else f"behind by {-gap:.3f}: {gap:.3f} ="
            lines.append(f"why not {name(self.against)}: {said} {shift:+.3f} bias +")
            lines += self._lines(self.differences, self.difference_rest, None)
        return "\n".join(lines)

    def _lines(self, terms: Sequence[Term], rest: float, others: int | None) -> list[str]:
        lines = [
            f"  {feature_name(t.feature, self.in_features):>7} {t.value:9.3f}  [{t.low:.3f}, {t.high:.3f}]"
            f"  = {t.theta:.3f} x {t.weight:.3f}{_NOISY if t.beyond else ''}"
            for t in terms
        ]
        if others != 0 and (others is not None or abs(rest) > 0):
            lines.append(f"  {'others' if others is None else f'{others} more':>7} {rest:9.3f}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; the map as a list of rows."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        for key in ("terms", "differences"):
            record[key] = [vars(term) | {"name": feature_name(term.feature, self.in_features)} for term in record[key]]
        record["map"] = None if self.map is None else self.map.tolist()
        return record


def _namer(classes: Sequence[str] | None) -> Callable[[int], str]:
    def name(index: int) -> str:
        if classes is None:
            return f"class {index}"
        if index >= len(classes):
            raise InputError(f"there are {len(classes)} names but none for class {index}: give one a class, in order.")
        return str(classes[index])

    return name


def explain(
    model: nn.Module,
    x: Any,
    *,
    target: Classes = None,
    against: Classes | Literal["runner-up"] = None,
    top: int = 10,
    level: float = 0.9,
    maps: bool | None = None,
    seed: int = 0,
    batch_size: int = 64,
) -> list[Explanation]:
    """Take each example's decision apart, with each example passing the backbone exactly once.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or the layer itself (then ``x`` are features).
        x: as for :func:`bndl.predict`: a tensor or array (B, ...), a dict, a data set, or a loader.
        target: whose logit to take apart, one class for all or one an example; by default the decision.
        against: a class to compare with, "why the target and not it"; ``"runner-up"`` for the one that came second, or
            for the decision where the target itself came second. An example whose target it is has no differences.
        top: how many terms to list; the others are summed up as ``rest``.
        level: of the intervals.
        maps: whether to find where in the image it comes from. None: where the features are averages of a map.
        seed: of the draws behind the probabilities.
        batch_size: how many examples of a tensor, dict or data set pass the backbone together.
    Returns:
        One explanation an example.
    """
    top, layer = whole(top, name="top", least=1), find_layer(model)
    asked = Asked.of(target, against, layer.out_features)
    decider, found = Decider(layer, seed=seed), list[Explanation]()
    with evaluating(model):
        for batch in iterate(x, batch_size=batch_size):
            inputs = split_batch(batch)[0]
            features, where = _pass(model, layer, inputs, maps=maps)
            with torch.autocast(features.device.type, enabled=False):
                prediction = decider(features)
                chosen, other = asked.batch(prediction, start=len(found))
                image = None if where is None else contribution_map(layer, where, chosen.to(where.device)).cpu()
                parts = _Parts(layer, features, prediction, chosen, other, image)
                found += parts.explanations(top=top, level=level)
    if not found:
        raise InputError("nothing to explain: the loader gave no batch.")
    asked.check_count(len(found))
    return found


def _pass(model: nn.Module, layer: DecisionLayer, inputs: Any, *, maps: bool | None) -> tuple[Tensor, Tensor | None]:
    """Features, and maps where they are wanted and there."""
    if maps is False or (maps is None and not has_contribution_map(layer)):
        return features_of(model, inputs), None
    if maps:  # or else it says what is missing
        found = feature_maps(model, inputs)
        return found.features, found.maps
    features, where = features_and_maps(model, inputs, head=layer)
    return features, None if where is None else where.maps


@dataclass(frozen=True)
class _Parts:
    """A batch that is taken apart."""

    layer: DecisionLayer
    features: Tensor
    prediction: Prediction
    target: Tensor
    against: Tensor | None
    maps: Tensor | None

    def explanations(self, *, top: int, level: float) -> list[Explanation]:
        p, offset = self.prediction, self.layer.offset()
        bias = torch.zeros(self.layer.out_features) if offset is None else offset.cpu()
        values = contributions(self.layer, self.features, self.target.to(self.features.device)).cpu()
        terms, rest = self._terms(values, None, top=top, level=level)
        against: list[dict[str, Any]] = [{} for _ in terms]
        if self.against is not None:
            other = contributions(self.layer, self.features, self.against.to(self.features.device)).cpu()
            listed, remaining = self._terms(values, other, top=top, level=level)
            logits = p.logits.gather(1, self.against[:, None])[:, 0]
            against = [
                {
                    "against": int(self.against[i]),
                    "against_logit": float(logits[i]),
                    "against_bias": float(bias[self.against[i]]),
                    "differences": listed[i],
                    "difference_rest": remaining[i],
                }
                for i in range(len(terms))
            ]
        return [
            Explanation(
                label=int(p.labels[i]),
                target=int(self.target[i]),
                runner_up=int(p.runner_up[i]),
                probability=float(p.confidence[i]),
                p_value=float(p.p_value[i]),
                certain=bool(p.certain[i]),
                logit=float(p.logits[i, self.target[i]]),
                bias=float(bias[self.target[i]]),
                terms=terms[i],
                rest=rest[i],
                num_terms=int((values[i] > 0).sum()),
                in_features=self.layer.in_features,
                map=None if self.maps is None else self.maps[i],
                **against[i],
            )
            for i in range(len(terms))
        ]

    def _terms(
        self, own: Tensor, other: Tensor | None, *, top: int, level: float
    ) -> tuple[list[tuple[Term, ...]], list[float]]:
        """The largest terms of each example, or of the difference of two classes, and the sum of those left out."""
        values = own if other is None else own - other
        count = min(top, values.size(1))
        chosen = values.abs().topk(count, dim=1).indices  # (B, top)
        listed = values.gather(1, chosen)
        rest = (values.double().sum(dim=1) - listed.double().sum(dim=1)).tolist()
        theta, phi = self.layer.theta(self.features.to(self.layer.phi().mean.dtype)), self.layer.phi()
        active = theta.mean.cpu().gather(1, chosen)
        theta_shape = theta.shape.expand(theta.mean.size()).cpu().gather(1, chosen)
        weight, shape = phi.mean.cpu(), phi.shape.expand(phi.mean.size()).cpu()
        mine = self.target[:, None]
        if other is None or self.against is None:
            interval = product_interval(listed, theta_shape, shape[mine, chosen], level=level)
            weights = weight[mine, chosen]
        else:
            its = self.against[:, None]
            pair = (own.gather(1, chosen), other.gather(1, chosen), shape[mine, chosen], shape[its, chosen])
            interval = difference_interval(*pair, theta_shape=theta_shape, level=level)
            weights = weight[mine, chosen] - weight[its, chosen]
        numbers = self.layer.feature_ids.cpu()[chosen]
        columns = (numbers, listed, interval.low, interval.high, active, weights)
        rows = [zip(*(column[i].tolist() for column in columns), strict=True) for i in range(len(values))]
        return [tuple(Term(*row) for row in of_one if row[1] != 0) for of_one in rows], rest
