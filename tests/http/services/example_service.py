"""Serve one of docs/examples: python example_service.py NAME FD SETTINGS, in a folder with its public.pem."""

from __future__ import annotations

import json
import logging
import os
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ASYNC_DJANGO = Path(__file__).parent / "async_django.py"


def main(name: str, descriptor: int, settings: dict[str, Any]) -> None:
    logging.basicConfig()
    os.chdir(settings["folder"])
    os.environ["DATABASE_URL"] = settings["dsn"]
    sys.path.insert(0, str(EXAMPLES))  # as where the reader starts it
    if name in ("flask", "django"):
        from werkzeug.serving import make_server

        module = __import__(f"{name}_service")
        app = module.app if name == "flask" else module.application
        make_server("127.0.0.1", 0, app, threaded=True, fd=descriptor).serve_forever()
    else:
        import uvicorn

        if name == "async-django":
            app = runpy.run_path(str(ASYNC_DJANGO))["application"]
        else:
            app = __import__(f"{name}_service").app
        config = uvicorn.Config(app, log_level="warning", lifespan="off" if "django" in name else "on")
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
