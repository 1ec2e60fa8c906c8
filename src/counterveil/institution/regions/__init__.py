"""Regions: boxes in which a model accepts everybody, found and certified before anybody asks."""

from .choosing import ways_in
from .files import load_model
from .finding import Regions, find_regions
from .models import Thresholded, file_classes, read_model
from .private import find_private_regions
from .reports import Report, held_out_report
from .trees import Trees

__all__ = [
    "Regions",
    "Report",
    "Thresholded",
    "Trees",
    "file_classes",
    "find_private_regions",
    "find_regions",
    "held_out_report",
    "load_model",
    "read_model",
    "ways_in",
]
