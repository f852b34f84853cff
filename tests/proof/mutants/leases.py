"""Mutants of the lease store and manager."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

STATEMENTS = "src/sinkfence/stores/sql/statements.py"
DIALECTS = "src/sinkfence/stores/sql/dialects.py"
SCHEMA = "src/sinkfence/stores/sql/schema.py"

LEASES: tuple[Mutant, ...] = (
    Mutant(
        "steal a live lease",
        "leases.live",
        "S2",
        "two workers own the job at once, in every busy minute and not only after a pause",
        (Edit(STATEMENTS, " AND j.lease_until <= {d.clock}", ""),),
        promise="S2 live-lease-kept",
    ),
    Mutant(
        "reuse a generation",
        "leases.turns",
        "S5",
        "no destination can tell the new owner from the old one by number",
        (Edit(STATEMENTS, '_next(d, "j.generation + 1", by_clock)', '_next(d, "j.generation", by_clock)'),),
        promise="S1 dense-numbers",
    ),
    Mutant(
        "float generation",
        "leases.turns",
        "S5",
        "past 2^24 the next number is the same number",
        (
            Edit(
                STATEMENTS,
                '_next(d, "j.generation + 1", by_clock)',
                '_next(d, "CAST(j.generation AS real) + 1", by_clock)',
            ),
        ),
        promise="S1 raised-above",
    ),
    Mutant(
        "client clock in acquire",
        "leases.wrong_clock",
        "S3",
        "a worker whose clock is an hour ahead keeps the job for an hour after it has died",
        (
            Edit(STATEMENTS, "import json\n", "import json\nimport time\n"),
            Edit(
                STATEMENTS,
                "CAST(:owner AS text), {d.until}, 'open'",
                "CAST(:owner AS text), to_timestamp({time.time()} + CAST(:ttl AS float8)), 'open'",
            ),
            Edit(
                STATEMENTS,
                "owner = excluded.owner, lease_until = {d.until}",
                "owner = excluded.owner, lease_until = to_timestamp({time.time()} + CAST(:ttl AS float8))",
            ),
        ),
        promise="S3 client-clock-ignored",
    ),
    Mutant(
        "the transaction's clock in place of the clock",
        "leases.kept_waiting",
        "S3",
        "time spent waiting for a lock is taken off the lease: it may be over before it is granted",
        (Edit(DIALECTS, 'until="(clock_timestamp() + make_interval', 'until="(now() + make_interval'),),
    ),
    Mutant(
        "anybody's grant taken for one's own lost answer",
        "leases.live",
        "S5",
        "a worker that asks for a job that is held gets it, under its holder's number",
        (
            Edit(
                STATEMENTS,
                'if found and found.owner == owner and found.state == "open" and found.lease_until:\n'
                "            # Sent twice",
                'if found and found.state == "open" and found.lease_until:\n            # Sent twice',
            ),
        ),
        promise="S2 live-lease-kept",
    ),
    Mutant(
        "renew without generation",
        "leases.same_owner",
        "S4",
        "a late renewal of an earlier turn extends a later one, of which its worker knows nothing",
        (
            Edit(
                STATEMENTS,
                "SELECT job_id AS mine FROM {TABLE} WHERE {_MINE} AND",
                "SELECT job_id AS mine FROM {TABLE} WHERE job_id = :job_id AND owner = :owner AND",
            ),
        ),
        promise="S4 renew-by-owner-and-generation",
    ),
    Mutant(
        "renew by job alone",
        "leases.turns",
        "S4",
        "a worker that has lost the job is told that it still has it",
        (
            Edit(
                STATEMENTS,
                "SELECT job_id AS mine FROM {TABLE} WHERE {_MINE} AND",
                "SELECT job_id AS mine FROM {TABLE} WHERE job_id = :job_id AND",
            ),
        ),
        promise="S4 renew-by-owner-and-generation",
    ),
    Mutant(
        "complete by anybody",
        "leases.turns",
        "S6",
        "a late worker's result is recorded while its successor is at work",
        (
            Edit(
                STATEMENTS,
                "lease_until = {d.minus_infinity}\n         WHERE {_MINE} AND",
                "lease_until = {d.minus_infinity}\n         WHERE job_id = :job_id AND",
            ),
        ),
        promise="S6 complete-by-owner",
    ),
    Mutant(
        "DELETE on complete",
        "leases.completed",
        "S1",
        "the count starts again at 1, below what every destination has seen",
        (
            Edit(
                STATEMENTS,
                "UPDATE {TABLE} SET state = 'done', result = {d.result_in}, lease_until = {d.minus_infinity}",
                "DELETE FROM {TABLE}",
            ),
            Edit(
                SCHEMA,
                "sinkfence_lease_delete BEFORE DELETE OR TRUNCATE",
                "sinkfence_lease_delete BEFORE TRUNCATE",
            ),
        ),
        promise="S6 completed-stays",
    ),
    Mutant(
        "complete that clears owner",
        "leases.completed",
        "D6",
        "a completion whose answer was lost is repeated and reported as refused, though it stands",
        (
            Edit(
                STATEMENTS,
                "SET state = 'done', result = {d.result_in}, ",
                "SET state = 'done', owner = NULL, result = {d.result_in}, ",
            ),
        ),
        promise="S6 complete-repeatable",
    ),
    Mutant(
        "release that keeps owner",
        "leases.released",
        "S4",
        "a renewal that was under way revives a lease that was given back: nobody works, nobody gets in",
        (
            Edit(
                STATEMENTS,
                "SET owner = NULL, lease_until = {d.minus_infinity} WHERE {_MINE}",
                "SET lease_until = {d.minus_infinity} WHERE {_MINE}",
            ),
        ),
        promise="S4 released-stays-released",
    ),
    Mutant(
        "clock floor dropped",
        "leases.failover",
        "S7",
        "a promoted standby issues numbers again that destinations have seen",
        (
            Edit(
                STATEMENTS,
                '{d.millis_since_2020})" if by_clock else counted',
                '{d.millis_since_2020})" if False else counted',
            ),
        ),
    ),
    Mutant(
        "number committed asynchronously",
        "leases.crash",
        "S5",
        "after a crash of the store an acknowledged number is issued to somebody else",
        (Edit(DIALECTS, "IN ('off', 'local') ", "IN ('never') "),),
    ),
    Mutant(
        "batch renewal without SKIP LOCKED",
        "leases.batch",
        "L1",
        "one frozen transaction lets the leases of all jobs of the process run out",
        (Edit(DIALECTS, "FOR NO KEY UPDATE OF j SKIP LOCKED", "FOR NO KEY UPDATE OF j"),),
    ),
    Mutant(
        "owner per manager instead of per acquire",
        "leases.one_manager",
        "S5",
        "two threads of one process are given the same turn, and no destination can tell them apart",
        (Edit("src/sinkfence/grants.py", "{secrets.token_hex(16)}", "{os.getpid():032x}"),),
    ),
    Mutant(
        "unconditional heal after a stale arm",
        "leases.overtaken_before_arming",
        "S2",
        "a worker that was late takes the job back from its successor",
        (
            Edit(
                STATEMENTS,
                "WHERE {_MINE} AND {d.greatest}(generation, CAST(:n AS bigint)) < {MAX_GENERATION}",
                "WHERE job_id = :job_id AND {d.greatest}(generation, CAST(:n AS bigint)) < {MAX_GENERATION}",
            ),
        ),
        promise="S7 reacquire-compares",
    ),
    Mutant(
        "StaleToken swallowed by hold()",
        "leases.refused_in_the_body",
        "L3",
        "the program goes on as if its work had been taken",
        (
            Edit(
                "src/sinkfence/leases/manager.py",
                "drive(here.leave(held, error))\n                raise\n            drive(here.leave",
                "drive(here.leave(held, error))\n                return\n            drive(here.leave",
            ),
        ),
    ),
)
