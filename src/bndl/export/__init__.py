"""A model and all that ``predict`` says as one file that runs without bndl: ONNX, or torch's own ``.pt2``.

``bndl.export`` is the function (:mod:`bndl.export.run`); this package holds its parts: what the model is traced with
(:mod:`bndl.export.example`), the graph (:mod:`bndl.export.graph`), the two formats (:mod:`bndl.export.files`) and the
trial of the finished file (:mod:`bndl.export.trial`).
"""

from bndl.export.graph import FromPixels
from bndl.export.run import Exported, Port, export

__all__ = ["Exported", "FromPixels", "Port", "export"]
