"""Whether the explanations point at what the model looks at: on a sample of the examples, against random order."""

import torch
from torch import Tensor, nn

from bndl.compact import CompactLayer
from bndl.explain.contributions import contribution_map
from bndl.explain.curves import Curves, Summary
from bndl.explain.faithfulness import deletion, feature_deletion, insertion, random_orders
from bndl.explain.maps import feature_maps, head_of
from bndl.explain.randomisation import main_parts, randomisation_check
from bndl.report.decided import Decided
from bndl.report.pictures import Pictures
from bndl.report.schema import Faithfulness, Randomised

__all__ = ["faithfulness_of"]

_STEPS = 5  # points of a curve over images: each costs a pass an image
_FEATURE_STEPS = 20  # and over features, which cost nothing
_RANDOMISED = 16  # images of the randomisation check
_PARTS = 8  # of the network that it draws anew, from the top
_BATCH = 8  # images a pass: more do not fit a processor's cache


def faithfulness_of(
    decided: Decided, pictures: Pictures, dense: nn.Module | None, *, num_images: int, seed: int = 0
) -> tuple[Faithfulness, str]:
    """The curves, and what could not be measured, in a sentence ("" if nothing).

    Args:
        decided: what was decided.
        pictures: of the examples.
        dense: a dense twin of the model, judged by its own maps.
        num_images: examples to measure on, chosen by the seed.
        seed: of this choice and of random orders.
    """
    order = torch.randperm(len(decided), generator=torch.Generator().manual_seed(seed))
    chosen = order[:num_images].sort().values
    labels = decided.prediction.labels[chosen]
    terms = _by_terms(decided, chosen, seed)
    if not pictures.has_maps:
        said = "Deletion and insertion need heat maps, which this network has not: only features were taken out."
        return Faithfulness(len(chosen), None, None, terms, None), said
    x = pictures.ready(pictures.read(chosen.tolist()))
    found = _Judged(x, labels, seed)
    ours, cells = found.curves(pictures.model)
    others = (None, None) if dense is None else found.curves(dense)[0]
    random = [found.summary(found.random(pictures.model, mode, cells)) for mode in ("deletion", "insertion")]
    both = [
        {"bndl": own, "random": chance, "dense": other} for own, chance, other in zip(ours, random, others, strict=True)
    ]
    return Faithfulness(len(chosen), both[0], both[1], terms, _randomised(pictures, x, labels, seed)), ""


def _by_terms(decided: Decided, chosen: Tensor, seed: int) -> dict[str, Summary | None]:
    """The decision's terms taken out, the largest first or in random order; exact."""
    features = decided.data.features[chosen].to(decided.layer.weight)
    return {
        "bndl": feature_deletion(decided.layer, features, steps=_FEATURE_STEPS).summary(seed=seed),
        "random": feature_deletion(decided.layer, features, order="random", steps=_FEATURE_STEPS, seed=seed).summary(
            seed=seed
        ),
    }


class _Judged:
    """Images as a model takes them, and the decisions whose probability is watched."""

    def __init__(self, x: Tensor, labels: Tensor, seed: int) -> None:
        self.x, self.labels, self.seed = x, labels, seed

    def curves(self, model: nn.Module) -> tuple[tuple[Summary, Summary], tuple[int, int]]:
        """Deletion and insertion by a model's own maps, and the cells of these."""
        maps = torch.cat([_evidence(model, x, own) for x, own in self._parts()])
        options = {"target": self.labels, "steps": _STEPS, "batch_size": _BATCH, "seed": self.seed}
        both = (
            self.summary(deletion(model, self.x, maps, **options)),  # type: ignore[arg-type]
            self.summary(insertion(model, self.x, maps, **options)),  # type: ignore[arg-type]
        )
        return both, (maps.size(1), maps.size(2))

    def random(self, model: nn.Module, mode: str, cells: tuple[int, int]) -> Curves:
        """The same in random order."""
        return random_orders(
            model,
            self.x,
            cells=cells,
            mode=mode,  # type: ignore[arg-type]
            num_orders=1,
            target=self.labels,
            steps=_STEPS,
            batch_size=_BATCH,
            seed=self.seed,
        )

    def summary(self, curves: Curves) -> Summary:
        """The mean curve with its interval."""
        return curves.summary(seed=self.seed)

    def _parts(self) -> "zip[tuple[Tensor, Tensor]]":
        return zip(self.x.split(_BATCH), self.labels.split(_BATCH), strict=True)


def _evidence(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Where the score of a class comes from (B, H, W), for either kind of head."""
    head = head_of(model)
    maps = feature_maps(model, x, head=head).maps
    return contribution_map(head, maps, labels.to(maps.device)).cpu()


def _randomised(pictures: Pictures, x: Tensor, labels: Tensor, seed: int) -> tuple[Randomised, ...]:
    """How alike the maps stay when the network forgets what it learned, from the top."""
    few, own = x[:_RANDOMISED], labels[:_RANDOMISED]
    found = randomisation_check(
        pictures.model,
        few,
        lambda model, images: _evidence(model, images, own),
        modules=main_parts(pictures.model, few[:1])[:_PARTS],
        how="shuffle" if isinstance(pictures.layer, CompactLayer) else "reset",  # a compact layer has no new start
        seed=seed,
    )
    return tuple(
        Randomised(name, float(row.mean())) for name, row in zip(found.modules, found.correlation, strict=True)
    )
