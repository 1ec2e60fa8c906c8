"""Regions: boxes in which a model accepts everybody, found and certified before anybody asks."""

from .finding import Regions, find_regions, ways_in
from .models import read_model
from .trees import Trees

__all__ = ["Regions", "Trees", "find_regions", "read_model", "ways_in"]
