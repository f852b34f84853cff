"""Leases counted in PostgreSQL, or in an SQLite file to start with."""

try:
    import sqlalchemy as _sqlalchemy
except ImportError as _missing:  # one line that helps, in place of a traceback through our modules
    raise ImportError(f"SqlStore needs SQLAlchemy ({_missing}): pip install 'sinkfence[sql]'") from None
del _sqlalchemy

from sinkfence.stores.sql.store import SqlStore  # noqa: E402 - after the check that there is an SQLAlchemy

__all__ = ["SqlStore"]
