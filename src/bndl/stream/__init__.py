"""Predictions on more than fits memory: a source through a model into a file, stoppable at any moment.

Needs pyarrow and filelock, and Pillow for images: ``pip install "bndl[data]"``.
"""

from bndl.errors import MissingExtraError

try:
    import filelock  # noqa: F401
    import pyarrow  # noqa: F401
except ImportError as error:
    raise MissingExtraError("bndl predict", extra="data") from error

from bndl.stream.names import from_text, to_text
from bndl.stream.run import Summary, check_out, predict_to_file
from bndl.stream.settings import Settings
from bndl.stream.source import Source, open_source
from bndl.stream.subject import Predictor, load_predictor

__all__ = [
    "Predictor",
    "Settings",
    "Source",
    "Summary",
    "check_out",
    "from_text",
    "load_predictor",
    "open_source",
    "predict_to_file",
    "to_text",
]
