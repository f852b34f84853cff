"""Mutants of the PostgreSQL destination."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

MARKS = "adapters/sinkfence_postgres/schema/marks.sql"
GUARD = "adapters/sinkfence_postgres/schema/guard.sql"
ARM = "adapters/sinkfence_postgres/schema/arm.sql"
AIO = "adapters/sinkfence_postgres/aio/transactions.py"
TRANSACTIONS = "adapters/sinkfence_postgres/transactions.py"

LOCK = "    perform pg_advisory_xact_lock_shared(sinkfence.lock_key(job_id));\n"

CONFIRM = "            connections.run(tx_, statements.confirm(attempt.bearers))\n"

POSTGRES: tuple[Mutant, ...] = (
    Mutant(
        "no check",
        "postgres.takeover",
        "D1",
        "a paused worker's last write lands on top of its successor's work",
        (
            Edit(
                GUARD,
                "    perform sinkfence.judge(job_id, generation, owner, seen, seen_owner);\n  end $fn$;\n\n"
                "  -- The seal:",
                "  end $fn$;\n\n  -- The seal:",
            ),
        ),
        promise="D1 delayed-refused",
    ),
    Mutant(
        "strict >",
        "postgres.takeover",
        "L1",
        "an owner's own writes are refused",
        (Edit(MARKS, "elsif mark > generation then", "elsif mark >= generation then"),),
        promise="D1 equal-accepted",
    ),
    Mutant(
        "the seal's deferred check dropped",
        "postgres.takeover",
        "D9",
        "the check at the start has passed long ago when the paused transaction commits",
        (Edit(GUARD, "      insert into sinkfence.sealed values (job_id, generation, owner);\n", ""),),
        promise="D9 delayed-after-arm",
    ),
    Mutant(
        "the seal fired at once",
        "postgres.takeover",
        "L2",
        "a worker frozen in mid-transaction keeps its successor out for as long as it is frozen",
        (Edit(GUARD, "deferrable initially deferred", "deferrable initially immediate"),),
        promise="L2 arm-not-kept-waiting",
    ),
    Mutant(
        "check in one transaction and effect in the next",
        "postgres.takeover",
        "D9",
        "between the two there is time for a successor's whole work",
        (
            Edit(
                TRANSACTIONS,
                "            connections.run(tx_, statements.guard(attempt.bearers))\n"
                "            attempt.ours = False\n",
                "            connections.run(tx_, statements.guard(attempt.bearers))\n"
                '            connections.run(tx_, statements.Query("COMMIT", {}, rows=None))\n'
                "            attempt.ours = False\n",
            ),
            Edit(TRANSACTIONS, CONFIRM, ""),
        ),
        promise="D9 delayed-after-arm",
    ),
    Mutant(
        "read the mark before the lock in the seal",
        "postgres.commit_behind_arm",
        "D9",
        "a COMMIT that waited for the successor's arming passes by what it saw before it waited",
        (
            Edit(GUARD, LOCK, ""),
            Edit(
                GUARD,
                '       where m.job_id = lock_and_judge.job_id collate "C" for share;\n    end if;\n',
                '       where m.job_id = lock_and_judge.job_id collate "C" for share;\n    end if;\n' + LOCK,
            ),
        ),
    ),
    Mutant(
        "lock and read in a STABLE function",
        "postgres.commit_behind_arm",
        "D9",
        "the lock is newer than the snapshot that the mark is read by",
        (
            Edit(
                GUARD,
                "function sinkfence.lock_and_judge(job_id text, generation bigint, owner text) returns void\n"
                "  language plpgsql volatile",
                "function sinkfence.lock_and_judge(job_id text, generation bigint, owner text) returns void\n"
                "  language plpgsql stable",
            ),
        ),
    ),
    Mutant(
        "no lock in the seal",
        "postgres.arm_behind_commit",
        "D9",
        "a COMMIT under way is not waited for: the successor reads, and what it has read changes afterwards",
        (Edit(GUARD, LOCK, ""),),
    ),
    Mutant(
        "no lock in arm",
        "postgres.arm_behind_commit",
        "D9",
        "the same from the successor's side",
        (
            Edit(
                ARM,
                "        perform pg_advisory_xact_lock(sinkfence.lock_key(job_id));  -- queues fairly",
                "        null;  -- queues fairly",
            ),
            Edit(MARKS, "      perform pg_advisory_xact_lock(sinkfence.lock_key(old.job_id));\n", ""),
        ),
    ),
    Mutant(
        "FOR KEY SHARE in place of FOR SHARE",
        "postgres.old_snapshot",
        "D9",
        "under REPEATABLE READ a paused transaction commits by a mark as old as its snapshot",
        (
            Edit(
                GUARD,
                'lock_and_judge.job_id collate "C" for share;',
                'lock_and_judge.job_id collate "C" for key share;',
            ),
        ),
    ),
    Mutant(
        "mark not raised",
        "postgres.takeover",
        "D9",
        "arming says that the old owner is shut out, and it is not",
        (
            Edit(
                ARM,
                "      on conflict on constraint mark_pkey do update\n"
                "         set max_generation = excluded.max_generation, owner = excluded.owner, "
                "raised_at = clock_timestamp()\n"
                "       where m.max_generation < excluded.max_generation;\n",
                "      on conflict on constraint mark_pkey do nothing;\n      return;\n",
            ),
        ),
        promise="D9 arm-refuses-older",
    ),
    Mutant(
        "mark lowered by hand",
        "postgres.mark_lowered",
        "D8",
        "one UPDATE by an operator lets every earlier owner in again",
        (
            Edit(
                MARKS,
                "(new.max_generation > old.max_generation\n",
                "(new.max_generation <> old.max_generation\n",
            ),
        ),
    ),
    Mutant(
        "mark committed asynchronously",
        "postgres.crash",
        "D9",
        "a crash of the server forgets the successor, and the old owner writes again",
        (
            Edit(
                ARM,
                "current_setting('synchronous_commit') in ('off', 'local')",
                "current_setting('synchronous_commit') in ('never')",
            ),
        ),
    ),
    Mutant(
        "31-bit generation",
        "postgres.takeover",
        "L1",
        "after 2^31 acquisitions, or at once where numbers follow a clock, nobody gets in any more",
        (
            Edit(
                GUARD,
                "volatile set search_path = pg_catalog, pg_temp as $fn$\n  declare\n    seen bigint;",
                "volatile set search_path = pg_catalog, pg_temp as $fn$\n  declare\n    seen integer;",
            ),
        ),
        promise="D1 large-generations",
    ),
    Mutant(
        "owner not compared",
        "postgres.same_number",
        "D2",
        "after a failover of the store that lost a number two workers write as one",
        (Edit(MARKS, "elsif owner <> mark_owner collate", "elsif owner <> owner collate"),),
        promise="D1 conflict-refused",
    ),
    Mutant(
        "StaleToken swallowed",
        "postgres.takeover",
        "D5",
        "the worker reports as done what the database has refused",
        (
            Edit(
                TRANSACTIONS,
                '            observe.refuse("postgres", attempt.bearers[known.token], known)\n',
                '            observe.refuse("postgres", attempt.bearers[known.token], known)\n'
                "            return\n",
            ),
        ),
        promise="D1 stale-refused",
    ),
    Mutant(
        "the lease is not told of a refusal",
        "postgres.told",
        "L3",
        "the worker goes on to its next destination, which may not have been armed yet",
        (
            Edit(
                TRANSACTIONS,
                '            observe.refuse("postgres", attempt.bearers[known.token], known)\n',
                "            pass\n",
            ),
        ),
        promise="L3 refusal-tells-bearer",
    ),
    Mutant(
        "OutcomeUnknown guessed as success",
        "postgres.lost_answer",
        "D5",
        "the worker reports as done what may have been rolled back",
        (
            Edit(
                TRANSACTIONS,
                "        if isinstance(known, StaleToken) and known.token in attempt.bearers:\n",
                "        if isinstance(known, OutcomeUnknown):\n            return\n"
                "        if isinstance(known, StaleToken) and known.token in attempt.bearers:\n",
            ),
        ),
    ),
    Mutant(
        "COMMIT of an aborted transaction believed",
        "postgres.swallowed_error",
        "D5",
        'COMMIT answers "ROLLBACK" without an error, and the work is reported as done',
        (Edit(TRANSACTIONS, CONFIRM, ""),),
    ),
    Mutant(
        "a guarded transaction that was replaced believed",
        "postgres.replaced",
        "D9",
        "after a COMMIT of the worker's own the rest of its block is unguarded, and reported as done",
        (Edit(TRANSACTIONS, CONFIRM, ""),),
    ),
    Mutant(
        "no check in the asynchronous half",
        "postgres.asynchronous",
        "D1",
        "a worker with an event loop writes late, where every other worker is refused",
        (
            Edit(AIO, "            await run(tx_, statements.guard(attempt.bearers))\n", ""),
            Edit(AIO, "            await run(tx_, statements.confirm(attempt.bearers))\n", ""),
        ),
    ),
)
