"""The simulation's rooms are plain modules beside the tests, so that its command line finds them too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
