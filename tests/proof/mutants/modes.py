"""Mutants of the other ways to write to PostgreSQL: protected tables, done once, rows, bound sessions."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

PROTECT = "adapters/sinkfence_postgres/schema/protect.sql"
ROW = "adapters/sinkfence_postgres/schema/rows.sql"
ROWS = "adapters/sinkfence_postgres/rows.py"
LEDGER = "adapters/sinkfence_postgres/ledger.py"
TOKENS = "src/sinkfence/tokens.py"
BINDING = "adapters/sinkfence_postgres/binding.py"

INSERT = "        if not connections.run(tx_, entry.insert()):\n"
ON_CONNECTION = "        listen(conn, bound.listeners())\n"
RECALL = "            return entry.recall(*connections.run(tx_, entry.select())[0])\n"

MODES: tuple[Mutant, ...] = (
    Mutant(
        "an unguarded write let into a protected table",
        "modes.unguarded",
        "D9",
        "the one program that was forgotten writes as before, and late",
        (Edit(PROTECT, "WHEN ((%s IS NOT TRUE)) EXECUTE", "WHEN ((%s IS FALSE)) EXECUTE"),),
    ),
    Mutant(
        "a trigger known by its name and function",
        "modes.replaced",
        "D9",
        "one that was replaced and never asks is taken for protection, and protect leaves it",
        (Edit(PROTECT, "starts_with(pg_get_triggerdef(t.oid), w.head)", "w.relid is not null"),),
    ),
    Mutant(
        "a row of another job let in",
        "modes.other_job",
        "D2",
        "a transaction that is guarded for any job writes to the rows of all",
        (
            Edit(
                PROTECT,
                "from unnest(w.sides) side)",
                "from unnest(w.sides) side where false)",
            ),
        ),
    ),
    Mutant(
        "a guard of an earlier transaction believed",
        "modes.guarded_before",
        "D9",
        "a session's guard from its last transaction lets it write for ever",
        (
            Edit(
                PROTECT,
                "$t$starts_with(%s, ((pg_current_xact_id_if_assigned())::text || %L::text))$t$",
                "$t$(%s <> ''::text)$t$",
            ),
        ),
    ),
    Mutant(
        "the ledger not heeded",
        "modes.repeated",
        "D4",
        "a new owner repeats what the old one has done",
        (Edit(LEDGER, INSERT, INSERT.replace("if not", "if None is")),),
        promise="D4 duplicate-across-owners",
    ),
    Mutant(
        "a name of an Enum left as it is",
        "modes.spelled",
        "D4",
        "a worker that names its job by an Enum's member, and one that does by a str, do its steps twice",
        (Edit(TOKENS, "    value = str.__str__(value)\n", ""),),
    ),
    Mutant(
        "the ledger read before it is written",
        "modes.together",
        "D4",
        "two transactions that come to a step at once both do it",
        (
            Edit(
                LEDGER,
                INSERT + RECALL,
                '        select = __import__("dataclasses").replace(entry.select(), rows=None)\n'
                "        if known := connections.run(tx_, select):\n"
                "            return entry.recall(*known[0])\n"
                "        connections.run(tx_, entry.insert())\n",
            ),
        ),
    ),
    Mutant(
        "the entry of a failed step kept",
        "modes.failed_step",
        "L1",
        "a step that was never done is refused to everybody, for ever",
        (
            Edit(
                LEDGER,
                "    with translating(attempt), connections.savepoint(tx_) as block:\n        if not",
                "    with translating(attempt):\n        block = None\n        if not",
            ),
        ),
    ),
    Mutant(
        "whose key it is not compared",
        "modes.key_of_another",
        "D5",
        "the result of something else is taken for one's own",
        (Edit(LEDGER, "        if step != self.step:\n", "        if False:\n"),),
    ),
    Mutant(
        "once without a guard",
        "modes.once_unguarded",
        "D9",
        "a late worker does the steps that its successor hasn't come to",
        (Edit(LEDGER, '= " FROM sinkfence.confirm(:job_id, :generation, :owner)"', '= ""'),),
    ),
    Mutant(
        "a row's generation not compared",
        "modes.rows",
        "D1",
        "a late write overwrites what the successor has written",
        (Edit(ROW, "    if seen > generation then\n", "    if seen > 999999999999999 then\n"),),
    ),
    Mutant(
        "strict > for rows",
        "modes.rows",
        "L1",
        "an owner writes a row once, and never again",
        (Edit(ROW, "    if seen > generation then\n", "    if seen >= generation then\n"),),
    ),
    Mutant(
        "a delete that deletes",
        "modes.deleted_row",
        "D1",
        "a row that is gone can't refuse, and a late upsert brings it back",
        (
            Edit(
                ROWS,
                "    result = statement\n    if isinstance(statement, Delete):\n",
                "    if isinstance(statement, Delete):\n        return statement\n"
                "    result = statement\n    if isinstance(statement, Delete):\n",
            ),
        ),
    ),
    Mutant(
        "a tombstone passed over",
        "modes.deleted_row",
        "L3",
        "a late worker is told that its row is missing, and makes it anew",
        (
            Edit(
                ROWS,
                "result.where(or_(tombstone.is_(None), newer))",
                "result.where(or_(tombstone.is_(None), newer.is_(None)))",
            ),
        ),
    ),
    Mutant(
        "a bound session without its guard",
        "bound.late",
        "D9",
        "none of its transactions is checked, though all were promised to be",
        (
            Edit(BINDING, "                guard(conn, self.bearer)\n", ""),
            Edit(BINDING, ON_CONNECTION, ""),
        ),
    ),
    Mutant(
        "a bound session's refusal not understood",
        "bound.late",
        "L3",
        "the worker sees a driver's error, takes it for a passing one, and tries again",
        (Edit(BINDING, '{"handle_error": translate}', "{}"),),
    ),
    Mutant(
        "a bound session that goes on after its refusal",
        "bound.over",
        "D9",
        "a worker that takes the refusal for a passing one gets in by its second attempt",
        (
            Edit(
                BINDING,
                "                conn.invalidate()  # the session has it",
                "                # it has it",
            ),
            Edit(BINDING, '            "do_orm_execute": self._check_statement,\n', ""),
            Edit(BINDING, '            "before_commit": self._check_commit,\n', ""),
        ),
    ),
    Mutant(
        "a bound engine that goes on after its refusal",
        "bound.autocommit",
        "D9",
        "the second attempt runs outside of any transaction, and in autocommit it is there at once",
        (
            Edit(BINDING, "            refuse(conn)\n            raise\n", "            raise\n"),
            Edit(BINDING, '            "before_cursor_execute": self._refuse_autocommit,\n', ""),
            Edit(BINDING, '            "after_cursor_execute": self._guard_outside,\n', ""),
        ),
    ),
    Mutant(
        "a bound session takes any transaction for the guarded one",
        "bound.ended",
        "D9",
        "its writes after a commit by other means are guarded by nobody",
        (Edit(BINDING, ON_CONNECTION, ""),),
    ),
    Mutant(
        "a bound session's COMMIT not confirmed",
        "bound.replaced",
        "D9",
        "the driver's cursor writes after a ROLLBACK of its own, guarded by nobody, and it is committed",
        (Edit(BINDING, ', "commit": self._confirm', ""),),
    ),
    Mutant(
        "a bound session that does not miss its guard",
        "bound.undone",
        "D9",
        "a savepoint of the surrounding code takes the guard with it, and the rest is committed",
        (Edit(BINDING, "            if not commits and not conn.invalidated:\n", "            if False:\n"),),
    ),
    Mutant(
        "a bound engine unguarded outside of SQLAlchemy's transactions",
        "bound.reset",
        "D9",
        "a listener that fails once leaves it to the pool to commit what nobody has guarded",
        (Edit(BINDING, '            "after_cursor_execute": self._guard_outside,\n', ""),),
    ),
)
