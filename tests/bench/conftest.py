"""The benchmarks are imported as modules of `bench`: by their bare names, `http` would be another's."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
