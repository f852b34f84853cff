"""Which servers the tests use: given ones, containers, embedded ones, in this order."""

from __future__ import annotations

import gc
from pathlib import Path
from types import ModuleType

import pytest

from sinkfence_trials.servers import binaries


@pytest.fixture
def selection(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tests' conftest.py, where no container engine answers."""
    path = str(Path(__file__).parents[1] / "conftest.py")
    [module] = [
        module
        for module in pytestconfig.pluginmanager.get_plugins()
        if getattr(module, "__file__", None) == path
    ]
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    return module


def test_a_given_server_comes_first(selection, monkeypatch) -> None:
    """A URL in the environment is used and named without its password; not where a backend was asked for."""
    monkeypatch.setenv("SINKFENCE_TEST_DSN", "postgresql://me:secret@db.example/x")
    source = selection.given(None, "SINKFENCE_TEST_DSN", selection.PostgresServer)
    assert source.says == "SINKFENCE_TEST_DSN (db.example)"
    with source.run() as server:
        assert server.dsn == "postgresql://me:secret@db.example/x"
    assert selection.given("embedded", "SINKFENCE_TEST_DSN", selection.PostgresServer) is None


def test_an_s3_url_holds_all_that_a_client_needs(selection) -> None:
    """Endpoint, keys, bucket and region are read from one URL."""
    server = selection.s3_of_url("https://key:sec%2Fret@s3.example:9000/bucket?region=eu-west-1")
    assert server == selection.S3Server("https://s3.example:9000", "key", "sec/ret", "bucket", "eu-west-1")


def test_without_an_engine_there_are_no_containers(selection) -> None:
    """Any other server will do, but where containers were asked for, it is an error; no socket stays."""
    assert selection.contained(None, "image", selection.postgres_container) is None
    with pytest.raises(pytest.UsageError, match="no container engine answers"):
        selection.contained("testcontainers", "image", selection.postgres_container)
    gc.collect()  # a leaked socket would warn here, and fail this test


def test_a_missing_server_is_named_in_the_header(selection, monkeypatch) -> None:
    """That there is none is said at the start, and is an error only of the tests that need it."""
    monkeypatch.setattr(binaries, "_postgres_trees", lambda: iter(()))
    assert "pip install" in selection.embedded(binaries.find_postgres, selection.postgres).says
