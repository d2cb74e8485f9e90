"""Convert trained models to other mixers in stages."""

from rifflemix.lab.conversion.api import convert
from rifflemix.lab.conversion.report import ConversionReport, LayerResult, StageResult

__all__ = ["ConversionReport", "LayerResult", "StageResult", "convert"]
