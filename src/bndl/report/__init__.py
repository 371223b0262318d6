"""A report to mail: everything measured of a model, and why it decides as it does, in one HTML file."""

from bndl.report.collect import About, Options, collect
from bndl.report.schema import ReportData

__all__ = ["About", "Options", "ReportData", "collect"]
