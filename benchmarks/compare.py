"""``bndl compare`` where torchvision is of another build than torch, as next to a CPU build of torch.

    python benchmarks/compare.py resnet56_cifar10 --methods laplace,vbll,elastic-net      # arguments as of bndl compare

laplace-torch installs torchvision, and torchmetrics imports it; without its operators neither imports. The two that are
declared here, if torchvision does not come by itself, are never called. Where torchvision works, or is not installed (then
nothing needs it), this is ``bndl compare``.
"""

import importlib
import sys

import torch

from bndl.cli import main


def declare_operators() -> torch.library.Library | None:
    """What torchvision registers shapes for when it is imported; None where it comes by itself. Keep what is returned."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError:
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return operators
    return None


if __name__ == "__main__":
    OPERATORS = declare_operators()
    sys.exit(main(["compare", *sys.argv[1:]]))
