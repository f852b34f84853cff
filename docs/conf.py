"""How these pages are built: `python3 run.py docs`, or `python -m sphinx -W -n docs docs/_build/html`."""

project = "sinkfence"
author = "The sinkfence authors"
project_copyright = "The sinkfence authors, Apache-2.0"

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True

# Headings are link targets (`errors.md#sqlstates`), down to the third level.
myst_heading_anchors = 3

html_theme = "furo"
html_title = "sinkfence"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
