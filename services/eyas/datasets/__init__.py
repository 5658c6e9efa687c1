"""Datasets in: files of many forms become samples, once each, with every row that cannot be used accounted for."""

from eyas.datasets.importing import Imported, Sample, load, load_for
from eyas.datasets.rows import sample_id

__all__ = ["Imported", "Sample", "load", "load_for", "sample_id"]
