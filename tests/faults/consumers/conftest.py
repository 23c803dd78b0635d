"""The simulation's rooms are plain modules beside the tests; its network is the cluster simulation's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
