"""Why a decision was made: exact contributions of features, and where in the image they come from."""

from bndl.explain.contributions import contribution_map, contributions, reasons

__all__ = ["contribution_map", "contributions", "reasons"]
