"""Nginx on a socket that already listens: python nginx_service.py NAME FD SETTINGS."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path

CONFIG = """
daemon off; worker_processes 1; pid {folder}/pid; {user}
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen {host}:{port}; {server} }}
}}
"""

if __name__ == "__main__":
    descriptor, settings = sys.argv[2], json.loads(sys.argv[3])
    host, port = socket.socket(fileno=os.dup(int(descriptor))).getsockname()
    folder = Path(settings["folder"])
    user = "user root;" if os.geteuid() == 0 else ""
    text = CONFIG.format(folder=folder, user=user, host=host, port=port, server=settings["server"])
    (folder / "nginx.conf").write_text(text)
    command = [settings["nginx"], "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    if os.fork() == 0:  # ended by SIGTERM, when this process is killed: so its worker ends as well
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        os.execve(command[0], command, os.environ | {"NGINX": f"{descriptor};"})
    os.wait()
