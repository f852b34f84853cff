"""Rows that keep the generation that has written them, in a column of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sinkfence.errors import NotEnforced
from sinkfence.sinks import Bearer, token_of
from sinkfence.tokens import Token
from sinkfence_postgres import connections
from sinkfence_postgres.transactions import Attempt, translating

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session
    from sqlalchemy.sql.dml import Delete, Insert, Update

    AnyTx = sqlalchemy.Connection | Session | scoped_session[Any]

Values = dict[Any, Any]
"""By column, or by its name."""

KINDS: Final = ("sqlalchemy:Connection", connections.SESSION)

TOMBSTONE: Final = "deleted_at"
"""The column, nullable and with a time, that a deleted row has filled."""


def fenced_execute(
    tx: AnyTx, statement: Insert | Update | Delete, bearer: Bearer, *, column: str = "generation"
) -> int:
    """Execute a statement that gives each row it writes the bearer's generation, and overwrites no newer one.

    **No fence: the last generation wins, row by row.** A row that no newer owner has written yet takes a
    stale write. It is a second line of defence behind `transaction`, and tells a reader of changes which is
    newer. It needs no guard. Where one row is newer, nothing of the statement is written. NULL is the oldest.

    A delete leaves a tombstone, lest a stale write bring the row back: it fills the column `deleted_at`. An
    update passes tombstones over, an upsert revives them; it is yours to leave them out when you read.

    Args:
        tx: a SQLAlchemy Connection, Session or scoped_session.
        statement: `insert` (PostgreSQL's `on_conflict_do_update` included), `update` or `delete`, of a table
            or a mapped class; several rows are given as `.values([{...}, {...}])`.
        bearer: its token is read now.
        column: the name of a bigint column; what the statement says of it is replaced.

    Returns:
        How many rows were written. 0 from an update or delete: they are missing.

    Raises:
        StaleToken: a row is newer; nothing of the statement was applied, the transaction is aborted, and the
            bearer is told.
        NotEnforced: the column isn't bigint, so that no generation can be compared or kept; or a delete
            without a place for tombstones.
        ValueError, TypeError: a shape that this can't do: RETURNING, INSERT from a SELECT, a CTE, DO NOTHING;
            a table without the column.
        SchemaMismatch: as `guard`.
    """
    tx_ = connections.expect(tx, *KINDS)
    token = token_of(bearer)
    with translating(Attempt({token: bearer})):
        # Else the count is lost where SQLAlchemy asks for generated keys behind the scenes.
        counted = {"preserve_rowcount": True}
        written: int = tx_.execute(fenced(statement, token, column), execution_options=counted).rowcount
    return written


def fenced(statement: Any, token: Token, column: str) -> Any:
    """Return the statement with the generation in it. Sends nothing."""
    from sqlalchemy import BigInteger, cast, func
    from sqlalchemy.sql.dml import Delete, Insert, Update

    if not isinstance(statement, Insert | Update | Delete):
        raise TypeError(f"expected insert(), update() or delete(), not {type(statement).__qualname__}")
    # By their names, whatever keys they have in Python.
    columns = {column.name: column for column in statement.table.c}
    if column not in columns:
        raise ValueError(f"{statement.table} has no column {column!r}")
    place = columns[column]
    if not isinstance(place.type, BigInteger):
        raise NotEnforced(
            f"{place} is declared {place.type!r}, no place for a generation: make it BigInteger"
        )
    refuse_shape(statement)
    # In SET, not in WHERE: it is worked out on the row as it is when its lock was waited for, and can raise.
    raised = func.sinkfence.row_generation(
        place, token.job_id, token.generation, token.owner, type_=BigInteger
    )
    if isinstance(statement, Insert):
        return inserted(statement, {place: token.generation}, {place: raised}, columns.get(TOMBSTONE))
    newer = cast(place, BigInteger) > token.generation
    return changed(statement, {place: raised}, newer, columns.get(TOMBSTONE))


def refuse_shape(statement: Any) -> None:
    """Raise ValueError for what would write unfenced, or would have an answer that isn't given."""
    from sqlalchemy import CTE
    from sqlalchemy.dialects.postgresql.dml import OnConflictDoNothing
    from sqlalchemy.sql.visitors import iterate

    if statement.returning_column_descriptions:
        raise ValueError("RETURNING has no place here: the answer is how many rows were written")
    if getattr(statement, "select", None) is not None:
        raise ValueError("INSERT from a SELECT can't be fenced: give the rows with values()")
    if getattr(statement, "_extra_froms", ()) and statement.is_delete:
        raise ValueError("DELETE USING can't be fenced: say which rows by a condition, as with IN or EXISTS")
    for part in iterate(statement):
        if isinstance(part, CTE):
            raise ValueError("a CTE can't be fenced: execute it by itself")
        if isinstance(part, OnConflictDoNothing):
            raise ValueError("DO NOTHING would not tell stale from written: use on_conflict_do_update()")


def inserted(statement: Any, new: Values, existing: Values, tombstone: Any) -> Any:
    """Return an insert that writes `new`, or, where there is a row already, `existing`."""
    from sqlalchemy.dialects.postgresql.dml import OnConflictDoUpdate

    # SQLAlchemy has no public way to see or change these parts of a statement.
    if statement._multi_values:
        if not all(isinstance(row, dict) for rows in statement._multi_values for row in rows):
            raise ValueError("give each row to values() as a dict")
        result = statement._generate()
        result._multi_values = tuple([overlaid(row, new) for row in rows] for rows in statement._multi_values)
    else:
        result = put(statement, new)
    clause = statement._post_values_clause
    if isinstance(clause, OnConflictDoUpdate):
        revived = {} if tombstone is None else {tombstone: None}
        result._post_values_clause = OnConflictDoUpdate(
            clause.constraint_target,
            clause.inferred_target_elements,
            clause.inferred_target_whereclause,
            overlaid(overlaid(revived, dict(clause.update_values_to_set)), existing),
            clause.update_whereclause,
        )
    return result


def put(statement: Any, values: Values) -> Any:
    """Return the statement with values in place of its own."""
    result = statement.values(values)
    # values() takes a column and its name for two keys, and keeps both: the one by name goes.
    names = {column.key for column in values}
    kept = {k: v for k, v in result._values.items() if not (isinstance(k, str) and k in names)}
    result._values = type(result._values)(kept)
    return result


def overlaid(below: Values, above: Values) -> Values:
    """Put values over others. A column is there as itself or by its name."""
    names = {getattr(key, "key", key) for key in above}
    return {key: value for key, value in below.items() if getattr(key, "key", key) not in names} | above


def changed(statement: Any, values: Values, newer: Any, tombstone: Any) -> Any:
    """Return the update, or what takes the place of a delete. A newer tombstone is met, and refuses."""
    from sqlalchemy import func, or_, update
    from sqlalchemy.sql.dml import Delete

    result = statement
    if isinstance(statement, Delete):
        if tombstone is None:
            raise NotEnforced(
                f"{statement.table} has no column {TOMBSTONE!r} for a tombstone, and a row that is gone "
                "can't refuse a stale write: add it (a nullable timestamptz), or delete in a guarded block"
            )
        what = statement.entity_description
        result = update(what.get("expr", what["table"])).execution_options(
            **statement.get_execution_options()
        )
        # With loader criteria, or ONLY, it reaches fewer rows. There is no public way to read them.
        for part in ("_with_options", "_hints", "_prefixes", "_params"):
            if part in vars(statement):
                setattr(result, part, getattr(statement, part))
        if statement.whereclause is not None:
            result = result.where(statement.whereclause)
        values = {**values, tombstone: func.clock_timestamp()}
    if tombstone is not None:
        result = result.where(or_(tombstone.is_(None), newer))
    return put(result, values)
