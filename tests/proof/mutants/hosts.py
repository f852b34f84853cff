"""Mutants of a host's gate, of the answers that it keeps, and of the lookup of unsigned tokens."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

HOST = "adapters/sinkfence_http/host.py"
DOOR = "adapters/sinkfence_http/door.py"
KEPT = "adapters/sinkfence_http/host_replay.py"
RECORDS = "adapters/sinkfence_http/records.py"
VERIFIERS = "adapters/sinkfence_http/verifiers.py"

HOSTS: tuple[Mutant, ...] = (
    Mutant(
        "a door and nothing behind it",
        "hosts.inside",
        "D9",
        "as with DoorOnly, a request that was let in and then stalled writes after its successor's",
        (
            Edit(
                HOST,
                "        for pause in job.entering():\n            time.sleep(pause)\n        try:\n",
                "        job.check()\n        try:\n",
            ),
        ),
    ),
    Mutant(
        "those inside not waited for",
        "hosts.inside",
        "D9",
        "the same, with a lock that excludes nobody",
        (
            Edit(
                HOST, "files.locked(self._inside, fcntl.LOCK_EX)", "files.locked(self._inside, fcntl.LOCK_SH)"
            ),
        ),
    ),
    Mutant(
        "the mark read, then the lock taken",
        "hosts.between_reading_and_locking",
        "D9",
        "a request that has read the old mark gets in behind the new owner",
        (
            Edit(
                HOST,
                "        while not self._enter():\n",
                "        self.check()\n        while not self._enter():\n",
            ),
            Edit(
                HOST,
                "            self.check()\n        except BaseException:",
                "            pass\n        except BaseException:",
            ),
        ),
    ),
    Mutant(
        "an older owner recognised",
        "hosts.takeover",
        "D9",
        "a host whose newest owner has armed goes on serving the one before",
        (Edit(DOOR, "    admit(token, mark)\n", ""),),
    ),
    Mutant(
        "admitted after drain_timeout",
        "hosts.inside",
        "D9",
        "a service that has waited long enough takes the older request for done",
        (
            Edit(
                HOST,
                "not self._drain():\n            yield next(pauses)\n",
                "not self._drain():\n            return\n",
            ),
            Edit(
                HOST,
                "        if self._drained() < self._token.generation:\n"
                "            raise NotArmed(self._token, self._token.generation)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a request of a dead owner not taken over",
        "hosts.unfinished",
        "L1",
        "the step that its owner died in is done by nobody any more",
        (Edit(KEPT, '        if generation < token.generation:\n            return "run"\n', ""),),
    ),
    Mutant(
        "an attempt that has ended run again",
        "hosts.repeated",
        "D4",
        "a handler that died after it had paid pays once more for the same owner",
        (Edit(KEPT, '"in-progress" if AttemptFile.runs(self._folder, attempt) else "unknown"', '"run"'),),
    ),
    Mutant(
        "another request given the answer",
        "hosts.another_request",
        "D5",
        "the second of two payments under one key is acknowledged, and never made",
        (Edit(KEPT, '        if fingerprint != first_fingerprint:\n            return "reused"\n', ""),),
    ),
    Mutant(
        "half an answer kept as a whole one",
        "hosts.broken_off",
        "D5",
        "a payment whose handler broke off in its answer is acknowledged to the next who asks",
        (Edit(RECORDS, "self._ended if self._length is None else", "self._ended or"),),
    ),
    Mutant(
        "a number that nobody issued believed",
        "hosts.invented",
        "L1",
        "one request without a signature locks every owner out",
        (Edit(VERIFIERS, "token.generation != current[0] or not same_owner", "not same_owner"),),
    ),
    Mutant(
        "the owner not looked up",
        "hosts.guessed",
        "D2",
        "any caller that can count writes in the newest owner's place",
        (
            Edit(
                VERIFIERS,
                "token.generation != current[0] or not same_owner",
                "token.generation != current[0]",
            ),
        ),
    ),
)
