"""The proof's own modules (model, proxy, history, checker) are imported by these names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
