"""The benchmarks are scripts: their modules are found where they are."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "load_tests"))
