"""Correctness checks for all token mixers, including third-party mixers.

`check_mixer(cls)` only needs torch: call it from any test.
"""

from rifflemix.testing.contract import PROPERTIES, Property, check_mixer
from rifflemix.testing.forms import Form, forms_of

__all__ = ["PROPERTIES", "Form", "Property", "check_mixer", "forms_of"]
