"""The service of the races under each server, and nginx before it: started once, for the whole run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sinkfence_postgres import install

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@pytest.fixture(scope="session")
def race_database(postgres_server) -> Iterator[psycopg.Connection[Any]]:
    dsn = postgres_server.create_database()
    with psycopg.connect(dsn, autocommit=True) as db:
        install(db)
        db.execute("create table payment (id serial, place text, account int, generation bigint)")
        yield db
    postgres_server.drop_database(dsn)


@pytest.fixture(scope="session")
def start_race(race_database, start_service, tmp_path_factory):
    """Start the service by the name of its server, once each."""
    running: dict[str, Any] = {}
    dsn = make_conninfo(race_database.info.dsn, password=race_database.info.password)
    folder = str(tmp_path_factory.mktemp("gates"))

    def start(server: str) -> Any:
        if server in running:
            return running[server]
        if server == "nginx":
            if NGINX is None:
                pytest.skip("not run: no nginx (Debian's nginx-light)")
            passing = f"location / {{ proxy_pass {start('uvicorn-2').url}; }}"
            settings = {"nginx": NGINX, "folder": str(tmp_path_factory.mktemp("nginx")), "server": passing}
            running[server] = start_service("nginx_service.py", json.dumps(settings), name=server)
        else:
            settings = {"dsn": dsn, "folder": f"{folder}/{server}"}
            running[server] = start_service("race_service.py", json.dumps(settings), name=server)
        return running[server]

    yield start
    for service in running.values():
        service.process.kill()
        service.process.wait()
