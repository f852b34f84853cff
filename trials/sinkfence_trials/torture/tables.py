"""The tables of a run, and the triggers that tell what took effect and what became of leases."""

from __future__ import annotations

from contextlib import closing
from typing import Final

import psycopg

import sinkfence_postgres
from sinkfence.stores.sql import SqlStore

TABLES: Final = """
CREATE TABLE IF NOT EXISTS torture_entry (seq bigserial PRIMARY KEY, job_id text, generation bigint,
    owner text, id text, base text, key text, filling bytea);
CREATE TABLE IF NOT EXISTS torture_seen (seq bigserial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp(),
    kind text, job_id text, generation bigint, owner text, id text, base text, key text, until timestamptz);

CREATE OR REPLACE FUNCTION torture_entry_seen() RETURNS trigger LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$ BEGIN
    INSERT INTO torture_seen (kind, job_id, generation, owner, id, base, key)
    VALUES ('effect', NEW.job_id, NEW.generation, NEW.owner, NEW.id, NEW.base, NEW.key);
    RETURN NULL;
END $$;
-- At COMMIT: the order of the rows is that in which they were applied, not that in which they were sent.
DROP TRIGGER IF EXISTS torture ON torture_entry;
CREATE CONSTRAINT TRIGGER torture AFTER INSERT ON torture_entry DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION torture_entry_seen();

CREATE OR REPLACE FUNCTION torture_lease_seen() RETURNS trigger LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$ BEGIN
    INSERT INTO torture_seen (kind, job_id, generation, owner, until) VALUES (
        CASE WHEN TG_OP = 'INSERT' OR NEW.generation > OLD.generation THEN 'acquire'
             WHEN NEW.state = 'done' THEN 'complete'
             WHEN NEW.owner IS NULL THEN 'release'
             ELSE 'renew' END,
        NEW.job_id, NEW.generation, CASE WHEN TG_OP = 'INSERT' THEN NEW.owner
                                         ELSE coalesce(NEW.owner, OLD.owner) END, NEW.lease_until);
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS torture ON sinkfence_lease;
CREATE TRIGGER torture AFTER INSERT OR UPDATE ON sinkfence_lease
    FOR EACH ROW EXECUTE FUNCTION torture_lease_seen();
"""


def prepare(dsn: str) -> None:
    """Make marks, leases and the tables of a run, with their triggers; what is there is left as it is."""
    with psycopg.connect(dsn) as conn:
        if conn.execute("SELECT to_regclass('sinkfence.mark')").fetchone() == (None,):
            sinkfence_postgres.install(conn)
    with closing(SqlStore(dsn)) as store:
        store.create_schema()
    with psycopg.connect(dsn) as conn:
        conn.execute(TABLES.encode())
