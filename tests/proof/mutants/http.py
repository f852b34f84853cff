"""Mutants of the HTTP destination: the service's door, and the caller's half."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant
from mutants.postgres import CONFIRM

WSGI = "adapters/sinkfence_http/wsgi.py"
PASSAGE = "adapters/sinkfence_http/passage.py"
CALLS = "adapters/sinkfence_http/calls.py"

HTTP: tuple[Mutant, ...] = (
    Mutant(
        "door without check",
        "http.takeover",
        "D9",
        "a new owner is told that the service knows of it, and the old one's requests are served",
        (Edit(WSGI, "            fence.announce(token)\n", ""),),
    ),
    Mutant(
        "ASGI door without check",
        "http.asynchronous",
        "D9",
        "the same under another kind of server",
        (Edit("adapters/sinkfence_http/asgi.py", "            await fence.announce(token)\n", ""),),
    ),
    Mutant(
        "check at the door, effect later",
        "http.stopped_in_the_handler",
        "D9",
        "a request that was let in and then stalled writes after its successor's",
        (
            Edit(
                "adapters/sinkfence_postgres/transactions.py",
                "            connections.run(tx_, statements.guard(attempt.bearers))\n",
                "",
            ),
            Edit("adapters/sinkfence_postgres/transactions.py", CONFIRM, ""),
        ),
    ),
    Mutant(
        "strict off",
        "http.commits_after_answering",
        "D5",
        "the caller reads 200, and then the transaction is refused",
        (Edit(PASSAGE, "if not (self._strict and 200", "if not (False and 200"),),
    ),
    Mutant(
        "a transaction that is still open not noticed",
        "http.commits_once_more_after_answering",
        "D5",
        "the same where the handler has committed something else before",
        (
            Edit(
                "adapters/sinkfence_postgres/watch.py",
                "return self.done and not is_open",
                "return self.done",
            ),
        ),
    ),
    Mutant(
        "a refusal that the handler has kept not told",
        "http.overtaken_in_the_handler",
        "L3",
        "a framework's 500 is all that the worker hears of its successor, and it goes on",
        (Edit(PASSAGE, "self._watch.refused or self._heard", "self._heard"),),
    ),
    Mutant(
        "a part that was committed denied",
        "http.overtaken_between_two_transactions",
        "D6",
        "the caller takes what stands for refused as a whole",
        (Edit(PASSAGE, "if answer is None or not self._applied:", "if True:"),),
    ),
    Mutant(
        "gate.enter released before the body ends",
        "http.still_answering",
        "D9",
        "a handler that works while its answer is read is taken for one that has left",
        (
            Edit(
                WSGI,
                "                yield from self._run(environ, _Head(passage, start_response, recorder))\n",
                "                body = self._run(environ, _Head(passage, start_response, recorder))\n"
                "                next(body)\n"
                "            yield _HEAD_SENT\n"
                "            yield from body\n",
            ),
        ),
    ),
    Mutant(
        "signature not checked",
        "http.forged",
        "D2",
        "any caller that reaches the service can write to every job, and lock its owners out with one number",
        (
            Edit(
                "adapters/sinkfence_http/verifiers.py",
                "algorithms=[known[0].alg])",
                'algorithms=[known[0].alg], options={"verify_signature": False})',
            ),
        ),
    ),
    Mutant(
        "the route's job not compared with the token's",
        "http.another_job",
        "D2",
        "an owner of any job may write to all of them",
        (Edit(PASSAGE, "if job_id != self.token.job_id:", "if not job_id:"),),
    ),
    Mutant(
        "a service without a door taken for armed",
        "http.no_door",
        "D1",
        "a service that ignores the header serves every late request, and nobody notices",
        (
            Edit(
                "adapters/sinkfence_http/arming.py",
                'if status == 204 and word == "armed":',
                "if status < 300:",
            ),
            Edit(CALLS, 'if word not in ("accepted", "armed"):', 'if word and word != "accepted":'),
        ),
    ),
    Mutant(
        "412 not understood by the caller",
        "http.takeover",
        "L3",
        "the worker sees an error of HTTP like any other, and its retries go on",
        (
            Edit(
                CALLS,
                'if fencing and word in ("stale-token", "generation-conflict"):',
                'if fencing and word == "generation-conflict":',
            ),
        ),
    ),
    Mutant(
        "an answer in a hook's error not looked for",
        "http.hooked",
        "L3",
        "where a client's hook raises for statuses, the worker hears that nothing is known, and tries on",
        (Edit(CALLS, "    if not isinstance(answer, kind):", "    if True:"),),
    ),
    Mutant(
        "what may have arrived repeated without a key",
        "http.lost_answer",
        "D4",
        "the payment is made twice",
        (Edit(CALLS, "        self.unknown = self.unknown or sent\n", "        sent = False\n"),),
    ),
    Mutant(
        "a failure after the COMMIT taken for nothing done",
        "http.failed_after_the_commit",
        "D4",
        "a handler that has paid, and then met an error, pays once more for the caller's repetition",
        (Edit(PASSAGE, "return self._stepped and self._watch", "return self._watch"),),
    ),
    Mutant(
        "an unknown outcome run again by its own generation",
        "http.failed_after_the_commit",
        "D4",
        "the same",
        (Edit("adapters/sinkfence_postgres/replay.py", 'return "unknown", None', 'return "run", None'),),
    ),
)
