"""`bench` lies beside `src`, and is no part of what is installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
