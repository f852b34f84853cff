"""Mutants of the S3 destination, and of the rule that it applies."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

PLAN = "adapters/sinkfence_s3/plan.py"
SWAP = "adapters/sinkfence_s3/swap.py"
OBJECTS = "adapters/sinkfence_s3/objects.py"
UPLOADS = "adapters/sinkfence_s3/uploads.py"
PUT = "adapters/sinkfence_s3/put.py"
ORPHANS = "adapters/sinkfence_s3/orphans.py"
DATA = "adapters/sinkfence_s3/data.py"
MARKS = "src/sinkfence/marks.py"

ARM = """\
        outcome = self._known.write(self._known.exchange(), bearer, plan.arm, act="arm")
"""

S3: tuple[Mutant, ...] = (
    Mutant(
        "no check before the put",
        "s3.takeover",
        "D1",
        "a late put that S3 has refused is sent again on top of the successor's",
        (
            Edit(
                PLAN,
                "    return admit(token, register.mark)",
                "    return Mark(token.generation, token.owner)",
            ),
        ),
        promise="D1 stale-refused",
    ),
    Mutant(
        "no condition on the put",
        "s3.takeover",
        "D9",
        "a put that was under way for a minute replaces what the successor has written",
        (
            Edit(
                "adapters/sinkfence_s3/exchange.py",
                'condition = {"IfMatch": strong(etag).strip(\'"\') if self.bucket.bare else strong(etag)}',
                "condition = {}",
            ),
        ),
        promise="D9 delayed-after-arm",
    ),
    Mutant(
        "strict > in the rule",
        "s3.takeover",
        "L1",
        "an owner's own writes are refused",
        (Edit(MARKS, "token.generation < mark.generation", "token.generation <= mark.generation"),),
        promise="D1 equal-accepted",
    ),
    Mutant(
        "31-bit generation in the rule",
        "s3.across_31_bits",
        "L1",
        "when the count passes 2^31 a new owner is taken for an old one, and nobody gets in any more",
        (
            Edit(
                MARKS,
                "token.generation < mark.generation:",
                "token.generation % 2**31 < mark.generation % 2**31:",
            ),
        ),
        promise="D1 large-generations",
    ),
    Mutant(
        "owner not compared in the rule",
        "s3.same_number",
        "D2",
        "after a failover of the store that lost a number two workers write as one",
        (Edit(MARKS, "and token.owner != mark.owner", "and False"),),
        promise="D1 conflict-refused",
    ),
    Mutant(
        "mark in the handle's memory",
        "s3.armed",
        "D9",
        "the mark is known to the one process that need not be stopped",
        (
            Edit(
                OBJECTS,
                ARM,
                "        self._known.remembered = readers.look(self._known.exchange())\n        return\n",
            ),
        ),
        promise="D9 arm-refuses-older",
    ),
    Mutant(
        "no arm on an absent key",
        "s3.delayed_create",
        "D9",
        "an old owner's first put arrives late, and makes the object that its successor has found absent",
        (
            Edit(
                OBJECTS,
                ARM,
                "        if readers.look(self._known.exchange()) is None:\n            return\n" + ARM,
            ),
        ),
        promise="D9 arm-refuses-older",
    ),
    Mutant(
        "arming that drops the content",
        "s3.armed",
        "D7",
        "a new owner that takes over a job empties the object under its readers",
        (
            Edit(
                PLAN,
                "    content = None if old is None else old.content\n    digest",
                "    content = None\n    digest",
            ),
        ),
    ),
    Mutant(
        "content ETag",
        "s3.same_content_again",
        "D3",
        "equal bytes have equal ETags, and a write in between is overwritten unseen",
        (
            Edit(SWAP, "secrets.token_hex(16)", '"0" * 32'),
            Edit(PLAN, "seq = 1 if old is None else old.last.seq + 1", "seq = 1"),
            Edit(PLAN, "previous_etag=None if seen is None else seen.etag", "previous_etag=None"),
            Edit(PLAN, "ring=(*(() if old is None else old.ring), entry)[-RING:]", "ring=(entry,)"),
        ),
    ),
    Mutant(
        "ring decided by tag",
        "s3.lost_request",
        "D5",
        "a successor's write is taken for one's own that was lost: reported as done, and done by nobody",
        (
            Edit(
                PLAN,
                "Fate.APPLIED if entry.write_id == send.register.last.write_id else",
                "Fate.APPLIED if entry.tag == send.register.last.tag else",
            ),
        ),
        promise="D9 delayed-after-arm",
    ),
    Mutant(
        "one's own lost success not recognised",
        "s3.lost_answer",
        "D4",
        "S3's 412 to the repetition of an applied put is taken for another's write: it is done twice",
        (
            Edit(
                PLAN,
                "return Fate.APPLIED if entry.write_id == send.register.last.write_id else Fate.OVERTAKEN",
                "return Fate.OVERTAKEN",
            ),
        ),
    ),
    Mutant(
        "no dedupe",
        "s3.same_step",
        "D4",
        "a new owner repeats what the old one has done",
        (Edit(PLAN, "            if entry.tag != tag:\n", "            if entry.tag != tag or tag:\n"),),
        promise="D4 duplicate-across-owners",
    ),
    Mutant(
        "mark not raised on a duplicate",
        "s3.same_step_unarmed",
        "D9",
        "the new owner is told that the step is done, and then the old one's put arrives",
        (
            Edit(
                PLAN,
                "            if mark == seen.register.mark:\n                return Done(entry)\n",
                "            return Done(entry)\n",
            ),
        ),
        promise="D8 duplicate-raises-mark",
    ),
    Mutant(
        "answered from what the handle remembers",
        "s3.answered_from_memory",
        "L3",
        "a late worker is told that its step is done, and goes on to the next destination",
        (
            Edit(
                SWAP,
                "if not fresh and not isinstance(decision, Send):",
                "if not fresh and decision is None:",
            ),
        ),
    ),
    Mutant(
        "register swapped before its data is there",
        "s3.data_under_way",
        "D7",
        "readers find nothing for as long as the upload takes, and for ever if its owner dies in between",
        (
            Edit(
                UPLOADS,
                "            persist(put, self._check_wanted)\n",
                "            self.late = put\n",
            ),
            Edit(
                PUT,
                "        if outcome.repeated:\n",
                "        getattr(self._upload, 'late', int)()\n        if outcome.repeated:\n",
            ),
        ),
    ),
    Mutant(
        "data objects that are written twice",
        "s3.long_takeover",
        "D6",
        "the register of the content before shows what was refused",
        (Edit(DATA, 'f"{generation}-{secrets.token_hex(16)}"', 'f"{generation}-data"'),),
    ),
    Mutant(
        "collect takes the current generation",
        "s3.collected",
        "D5",
        "data that was sent and is about to be named is gone when it is, and the put is reported as done",
        (Edit(ORPHANS, "generation < seen", "generation <= seen"),),
    ),
    Mutant(
        "collect takes what the register names",
        "s3.collected",
        "D7",
        "a new owner's cleaning up removes the content that it has found",
        (Edit(ORPHANS, " and name != named", ""),),
    ),
    Mutant(
        "data removed after an unknown outcome",
        "s3.nothing_read_back",
        "D7",
        "the register was applied after all, and names what its owner has taken back",
        (
            Edit(
                PUT,
                "(Conflict, IdempotencyMismatch, JobMismatch, LeaseLost, StaleToken)",
                "SinkfenceError",
            ),
        ),
    ),
    Mutant(
        "tombstone that forgets the fence",
        "s3.deleted",
        "D9",
        "with the register its mark is gone: an old owner's first put, on its way since long, makes it anew",
        (
            Edit(
                OBJECTS,
                "        if outcome.replaced is not None and isinstance(outcome.replaced.body, Data):\n",
                "        self._known.exchange().send(self._known.bucket.client.delete_object)\n"
                "        if outcome.replaced is not None and isinstance(outcome.replaced.body, Data):\n",
            ),
        ),
    ),
    Mutant(
        "a failed write forgotten",
        "s3.caught",
        "D7",
        "a caller that catches the error and writes on puts a content with a gap, and is told of success",
        (
            Edit(
                PUT,
                "not self._write_lock.acquire(",
                "not self._write_lock.locked() and not self._write_lock.acquire(",
            ),
            Edit(PUT, "self.broken or self._write_lock.locked()", "self.broken"),
        ),
    ),
)
