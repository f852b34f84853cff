"""PgBouncer in transaction mode before a database, with few connections to the server for everybody."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.supervised import supervised

PGBOUNCER = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")

SETTINGS = """
[databases]
{name} = host={host} port={server} dbname={name} user={user} password='{password}'{query}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
"""


@contextmanager
def pgbouncer(dsn: str, *, pool: int = 1, search_path: str = "") -> Generator[str]:
    """Run one, and give the URI of the same database as seen through it.

    `search_path` is for its connections to the server: clients cannot ask for one in their startup options.
    """
    assert PGBOUNCER
    parts, user = urlsplit(dsn), binaries.unprivileged()
    [port] = binaries.free_ports(1)
    with supervised("PgBouncer", binaries.temporary(user)) as process:
        settings = process.folder / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(
                name=parts.path.strip("/"),
                host=parts.hostname,
                server=parts.port,
                user=parts.username,
                password=unquote(parts.password or "").replace("'", "''"),
                query=f" connect_query='set search_path = {search_path}'" if search_path else "",
                port=port,
                pool=pool,
            )
        )
        settings.chmod(0o600)
        if user is not None:
            for path in (process.folder, settings):
                os.chown(path, *user)
        process.start([PGBOUNCER, settings], user=user)

        def answers(code: int | None) -> bool:
            with socket.socket() as sock:
                return code is None and sock.connect_ex(("127.0.0.1", port)) == 0

        process.wait(answers)
        yield f"postgresql://postgres@127.0.0.1:{port}{parts.path}"
