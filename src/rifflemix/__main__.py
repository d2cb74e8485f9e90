"""`python -m rifflemix`."""

import sys

from rifflemix.cli import main

sys.exit(main())
