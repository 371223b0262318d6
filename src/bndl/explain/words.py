"""LIME over the words of a text: which of them raise a feature of a Hugging Face classifier."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn

from bndl.errors import InputError
from bndl.explain.lime import Lime, lime_perturbed

__all__ = ["lime_words"]

Missing = Literal["mask", "remove"]


def lime_words(
    model: nn.Module,
    tokenizer: Callable[..., Any],
    text: str,
    *,
    missing: Missing = "mask",
    pattern: str = r"\S+",
    max_length: int | None = None,
    **settings: Any,
) -> Lime:
    """Explain all features of one text by leaving words out.

    Args:
        model: a Hugging Face text classifier with a :class:`bndl.DecisionLayer`.
        tokenizer: its tokenizer.
        text: what was classified, of two words or more.
        missing: ``"mask"``: the tokenizer's mask token stands for a word that is off; ``"remove"``: nothing does.
        pattern: regular expression of a word; by default what stands between spaces. One character: ``r"\\S"``.
        max_length: tokens at most; by default as many as the model has positions. Words beyond have no effect.
        **settings: as for :func:`bndl.explain.lime.lime_perturbed`, such as ``num_perturbations``.
    Returns:
        A Lime whose ``parts`` are the words.
    """
    if missing not in ("mask", "remove"):
        raise InputError(f"missing must be mask or remove, got {missing!r}.")
    token = getattr(tokenizer, "mask_token", None) if missing == "mask" else ""
    if token is None:
        raise InputError("this tokenizer has no mask token: use missing='remove'.")
    spans = [match.span() for match in re.finditer(pattern, text)]
    if len(spans) < 2:
        raise InputError(f"LIME needs two words or more, the text has {len(spans)}.")
    limit = max_length or _positions(model, tokenizer)

    def make(masks: Tensor) -> dict[str, Any]:
        texts = [_without(text, spans, row, token) for row in masks.tolist()]
        cut = {"truncation": True, "max_length": limit} if limit else {}
        return dict(tokenizer(texts, padding=True, return_tensors="pt", **cut))

    explained = lime_perturbed(model, make, num_parts=len(spans), **settings)
    return replace(explained, parts=tuple(text[start:end] for start, end in spans))


def _without(text: str, spans: Sequence[tuple[int, int]], there: Sequence[bool], token: str) -> str:
    """The text with ``token`` in place of the words that are not there."""
    pieces, last = [], 0
    for (start, end), kept in zip(spans, there, strict=True):
        pieces += [text[last:start], text[start:end] if kept else token]
        last = end
    return "".join([*pieces, text[last:]])


def _positions(model: nn.Module, tokenizer: Callable[..., Any]) -> int | None:
    """The shorter of what model and tokenizer can take, None where neither says."""
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    limits = [positions, getattr(tokenizer, "model_max_length", None)]
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**6]
    return min(known) if known else None
