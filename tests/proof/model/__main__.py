"""`python -m model` in tests/proof: every variant, its bounds, and the story of each fault."""

from model.stories import report
from model.variants import VARIANTS

for variant in VARIANTS:
    print(*report(variant, variant.explore()), sep="\n", end="\n\n")
