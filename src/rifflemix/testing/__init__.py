"""The contract of mixers as a function, for those of this package and for your own.

`check_mixer(cls)` needs torch and nothing else: call it from any test.
"""

from rifflemix.testing.contract import PROPERTIES, Property, check_mixer
from rifflemix.testing.forms import Form, forms_of

__all__ = ["PROPERTIES", "Form", "Property", "check_mixer", "forms_of"]
