"""A WSGI application, to be loaded before the fork."""

from __future__ import annotations

import preforked


def app(environ, start_response):
    """POST /7 charges 7."""
    told = preforked.charge(int(environ["PATH_INFO"][1:]))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [told.encode()]
