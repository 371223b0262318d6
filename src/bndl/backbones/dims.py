"""Checks of the numbers that a backbone is built from."""

from bndl.errors import InputError


def require_positive(**dims: int) -> None:
    """Raise :class:`InputError` naming the first of ``dims`` that is below 1."""
    for name, value in dims.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, but {value} was given: give a positive whole number.")


def blocks_per_stage(depth: int) -> int:
    """Return n of depth = 6n + 2: two layers a block in three stages, the stem and the head."""
    num_blocks, rest = divmod(depth - 2, 6)
    if rest or num_blocks < 1:
        raise InputError(
            f"The depth of a CIFAR ResNet is 6n + 2 (20, 32, 56, 110, ...), but {depth} was given: "
            f"take {max(8, depth - rest)}."
        )
    return num_blocks
