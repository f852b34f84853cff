"""What importing does: nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sinkfence
import sinkfence_http

LOADED = """
import sys
before = set(sys.modules)
import {modules}
ours = {{"sinkfence", "sinkfence_http", "sinkfence_postgres", "sinkfence_s3"}}
extra = {{name.partition(".")[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names - ours
import threading
print(sorted(extra), threading.active_count())
"""


@pytest.mark.parametrize("modules", ["sinkfence", "sinkfence_http", "sinkfence, sinkfence_http"])
def test_importing_loads_the_standard_library_alone(modules: str) -> None:
    """A service that mounts only the middleware installs nothing else, and importing starts no thread."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(modules=modules)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] 1"


@pytest.mark.parametrize("sink", ["sinkfence_http", "sinkfence_postgres", "sinkfence_s3"])
def test_a_sink_loads_neither_leases_nor_stores(sink: str) -> None:
    """What checks is loaded without what counts; the face has the leases once they are named."""
    script = (
        f"import sys, {sink}, sinkfence\n"
        "parts = ('sinkfence.leases', 'sinkfence.aio', 'sinkfence.stores', 'sinkfence.terms')\n"
        "print([name for name in sys.modules if name.startswith(parts)])\n"
        "print([name for name in sinkfence.__all__ if not hasattr(sinkfence, name)])\n"
        "print(sinkfence.Leases.__module__, sinkfence.Lease.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]", "sinkfence.leases.manager sinkfence.leases.lease"]


def test_the_face_has_no_other_names() -> None:
    """A name that isn't there is missing as in any module."""
    assert not hasattr(sinkfence, "Leasing")


@pytest.mark.parametrize(
    "module",
    [
        "sinkfence_http",
        "sinkfence_http.requests_adapter",
        "sinkfence_http.httpx_transport",
        "sinkfence_http.wsgi",
        "sinkfence_http.asgi",
    ],
)
def test_http_loads_without_what_windows_lacks(module: str) -> None:
    """Files are locked by HostGate alone, which is loaded where it is used; so it is no name of theirs."""
    script = (
        f"import sys; sys.modules['fcntl'] = sys.modules['sqlite3'] = None\nimport {module}, sinkfence_http\n"
        "try: sinkfence_http.HostGate\nexcept ImportError as error: print(error.name)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "fcntl\n"


def test_the_face_of_http_has_its_names_and_no_others() -> None:
    """HostGate too is found there, and a name that isn't is missing as in any module."""
    assert sinkfence_http.HostGate.__module__ == "sinkfence_http.host"
    assert [name for name in sinkfence_http.__all__ if not hasattr(sinkfence_http, name)] == []
    assert not hasattr(sinkfence_http, "HostGates")


def test_a_missing_sqlalchemy_is_one_line_that_helps() -> None:
    """Without the extra, importing the SQL store names the command that installs it."""
    script = "import sys; sys.modules['sqlalchemy'] = None\nimport sinkfence.stores.sql"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'sinkfence[sql]'" in done.stderr.splitlines()[-1]


def test_a_heartbeat_without_a_driver_is_told_when_the_store_is_made() -> None:
    """Where asyncpg alone is installed, the error says that the heartbeat's thread needs psycopg."""
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from sinkfence.stores.sql.aio import SqlStore; SqlStore('postgresql+asyncpg://localhost/x')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    told, note = done.stderr.splitlines()[-2:]
    assert told.endswith("pip install 'sinkfence[postgres]' 'psycopg[binary]'")
    assert "heartbeat" in note


@pytest.mark.parametrize(
    ("scheme", "driver", "install"),
    [
        ("postgresql", "psycopg", "'sinkfence[postgres]' 'psycopg[binary]'"),
        ("postgresql+asyncpg", "asyncpg", "asyncpg"),
    ],
)
def test_a_missing_driver_is_one_line_that_helps(scheme: str, driver: str, install: str) -> None:
    """Without the driver, making a store of a PostgreSQL URL names it, and the command that installs it."""
    script = (
        f"import sys; sys.modules['{driver}'] = None\n"
        f"from sinkfence.stores.sql import SqlStore; SqlStore('{scheme}://localhost/x')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"the driver {driver}," in done.stderr.splitlines()[-1]
    assert done.stderr.endswith(f"pip install {install}\n")
