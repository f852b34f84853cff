"""A small sound sink, and what becomes of it when one thing is wrong: each has a promise to break."""

from __future__ import annotations

import struct
import threading
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext

from sinkfence.errors import GenerationConflict, IdempotencyMismatch, NotArmed, StaleToken
from sinkfence.testing import SinkCapabilities
from sinkfence.tokens import Token

CLAIMS = SinkCapabilities(
    atomic=True, durable=True, nonblocking=True, concurrent=True, keys=True, history=True
)


class Destination:
    """What outlives the handles: marks, effects, keys, and the lock that makes one step of them."""

    def __init__(self):
        self.lock = threading.RLock()
        self.marks = {}
        self.effects = defaultdict(list)
        self.steps = {}


class Sink:
    """One handle; a write of a newer owner raises the mark."""

    needs_arm = False

    def __init__(self, there):
        self.there = there

    def arm(self, bearer):
        token = bearer.token
        with self.there.lock:
            self.tell(bearer, token, self.raise_mark)

    def write(self, bearer, value, step, between):
        token = bearer.token
        between()
        with self.there.lock:
            self.tell(bearer, token, self.check)
            self.apply(token, value, step)

    def tell(self, bearer, token, check):
        try:
            check(token)
        except StaleToken as stale:
            bearer.lose(stale)
            raise

    def check(self, token):
        if self.needs_arm and self.number(token.generation) > self.mark(token)[0]:
            raise NotArmed(token)
        self.raise_mark(token)

    def raise_mark(self, token):
        generation, owner = self.mark(token)
        mine = self.number(token.generation)
        if mine < generation:
            raise StaleToken(token, generation)
        if mine == generation and token.owner != owner:
            raise GenerationConflict(token, generation)
        self.keep_mark(token, mine)

    def apply(self, token, value, step):
        if step is not None:
            known = self.there.steps.setdefault(self.key(token, step), value)
            if known != value:
                raise IdempotencyMismatch
            if value in self.there.effects[token.job_id]:
                return
        self.there.effects[token.job_id].append(value)

    def mark(self, token):
        return self.there.marks.get(self.job(token), (0, ""))

    def keep_mark(self, token, generation):
        self.there.marks[self.job(token)] = generation, token.owner

    def number(self, generation):
        return generation

    def job(self, token):
        return token.job_id

    def key(self, token, step):
        return token.job_id, step


class Armed(Sink):
    """The other sound kind: refuses what was not armed."""

    needs_arm = True


class Harness:
    """How to use either, and the broken ones."""

    def __init__(self, kind=Sink, capabilities=CLAIMS):
        self.kind, self.capabilities = kind, capabilities
        self.there = Destination()

    def open(self, job_id: str) -> AbstractContextManager[Sink]:
        return nullcontext(self.kind(self.there))

    def arm(self, sink, bearer):
        sink.arm(bearer)

    def write(self, sink, bearer, value, step, between):
        sink.write(bearer, value, step, between)

    def truth(self, job_id):
        return list(self.there.effects[job_id])


class NoCheck(Sink):
    def tell(self, bearer, token, check):
        pass


class StrictlyGreater(Sink):
    def raise_mark(self, token):
        if token.generation <= self.mark(token)[0]:
            raise StaleToken(token, self.mark(token)[0])
        self.keep_mark(token, token.generation)


class MarkInTheHandle(Sink):
    def __init__(self, there):
        super().__init__(there)
        self.mine = {}

    def mark(self, token):
        return self.mine.get(token.job_id, (0, ""))

    def keep_mark(self, token, generation):
        self.mine[token.job_id] = generation, token.owner


class CheckThenApply(Sink):
    def write(self, bearer, value, step, between):
        token = bearer.token
        with self.there.lock:
            self.tell(bearer, token, self.check)
        between()
        with self.there.lock:
            self.apply(token, value, step)


class RereadBeforeApply(CheckThenApply):
    """Looks twice, and is no safer: what was armed in between and has written nothing is not noticed."""

    def write(self, bearer, value, step, between):
        before = len(self.there.effects[bearer.token.job_id])

        def pause():
            between()
            if len(self.there.effects[bearer.token.job_id]) != before:
                raise StaleToken(bearer.token)

        super().write(bearer, value, step, pause)


class WriteRaisesNoMark(Sink):
    def check(self, token):
        known = dict(self.there.marks)
        super().check(token)
        self.there.marks = known


class ArmRaisesNoMark(Sink):
    def arm(self, bearer):
        known = dict(self.there.marks)
        super().arm(bearer)
        self.there.marks = known


class DuplicateRaisesNoMark(Sink):
    def write(self, bearer, value, step, between):
        with self.there.lock:
            done = (bearer.token.job_id, step) in self.there.steps
            if done and bearer.token.generation > self.mark(bearer.token)[0]:
                return
        super().write(bearer, value, step, between)


class NoOwnerCompared(Sink):
    def raise_mark(self, token):
        if token.generation < self.mark(token)[0]:
            raise StaleToken(token, self.mark(token)[0])
        self.keep_mark(token, token.generation)


class ThirtyOneBits(Sink):
    def number(self, generation):
        return generation & (2**31 - 1)


class Float(Sink):
    def number(self, generation):
        return struct.unpack("f", struct.pack("f", generation))[0]


class Text(Sink):
    def number(self, generation):
        return str(generation)

    def mark(self, token):
        return self.there.marks.get(token.job_id, ("", ""))


class NoKeys(Sink):
    def apply(self, token, value, step):
        self.there.effects[token.job_id].append(value)


class KeyOfTheGeneration(Sink):
    def key(self, token, step):
        return token.job_id, token.generation, step

    def apply(self, token, value, step):
        if step is not None:
            if self.there.steps.setdefault(self.key(token, step), value) != value:
                raise IdempotencyMismatch
            counted = self.key(token, step), "done"
            if counted in self.there.steps:
                return
            self.there.steps[counted] = value
        self.there.effects[token.job_id].append(value)


class KeyBeforeFence(Sink):
    def write(self, bearer, value, step, between):
        if self.there.steps.get((bearer.token.job_id, step)) == value:
            return
        super().write(bearer, value, step, between)


class KeyOfAnyContent(Sink):
    def apply(self, token, value, step):
        if step is not None and self.key(token, step) in self.there.steps:
            return
        super().apply(token, value, step)


class RefusedKeyStays(Sink):
    def write(self, bearer, value, step, between):
        token = bearer.token
        between()
        with self.there.lock:
            known = step is not None and self.key(token, step) in self.there.steps
            if step is not None:
                self.there.steps.setdefault(self.key(token, step), value)
            self.tell(bearer, token, self.check)
            if not known:
                self.there.effects[token.job_id].append(value)


class ApplyThenCheck(Sink):
    def write(self, bearer, value, step, between):
        token = bearer.token
        between()
        with self.there.lock:
            self.apply(token, value, step)
            self.tell(bearer, token, self.check)


class RefusedRaisesMark(Armed):
    def check(self, token):
        try:
            super().check(token)
        except NotArmed:
            self.keep_mark(token, token.generation)
            raise


class UnarmedIsLetIn(Sink):
    """Declares that it needs arming."""

    needs_arm = False


class OneMarkForAll(Sink):
    def job(self, token):
        return "all"


class JobsByLetters(Sink):
    def job(self, token):
        return token.job_id.casefold()


class JobsCutOff(Sink):
    def job(self, token):
        return token.job_id.encode()[:64]


class TellsNobody(Sink):
    def tell(self, bearer, token, check):
        check(token)


class TellsTwice(Sink):
    def tell(self, bearer, token, check):
        try:
            super().tell(bearer, token, check)
        except StaleToken as stale:
            bearer.lose(stale)
            raise


class TellsAnother(Sink):
    def tell(self, bearer, token, check):
        try:
            check(token)
        except StaleToken as stale:
            bearer.lose(StaleToken(token, stale.mark))
            raise


class LocksWhileItWaits(Sink):
    def write(self, bearer, value, step, between):
        with self.there.lock:
            super().write(bearer, value, step, between)


class TokenKept(Sink):
    """Reads the token once and goes on with it."""

    def arm(self, bearer):
        self.kept = bearer.token
        super().arm(self.kept)

    def write(self, bearer, value, step, between):
        kept = getattr(self, "kept", None)
        if kept is None or type(bearer) is Token:
            kept = bearer.token
        super().write(kept, value, step, between)


class SecondArmRefused(Sink):
    def arm(self, bearer):
        if self.mark(bearer.token) == (bearer.token.generation, bearer.token.owner):
            raise StaleToken(bearer.token, bearer.token.generation)
        super().arm(bearer)


class LosesAcknowledged(Sink):
    """Of writes at once, one overwrites the other: it reads, and writes what it read and its own."""

    together = threading.Barrier(4)

    def write(self, bearer, value, step, between):
        before = list(self.there.effects[bearer.token.job_id])
        super().write(bearer, value, step, between)
        if threading.current_thread() is not threading.main_thread() and value in set("0123"):
            self.together.wait(10)
            self.there.effects[bearer.token.job_id] = [*before, value]


BROKEN = {
    NoCheck: "D1 stale-refused",
    StrictlyGreater: "D1 equal-accepted",
    NoOwnerCompared: "D1 conflict-refused",
    ThirtyOneBits: "D1 large-generations",
    Float: "D1 large-generations",
    Text: "D1 large-generations",
    CheckThenApply: "D1 delayed-refused",
    RereadBeforeApply: "D9 delayed-after-arm",
    KeyBeforeFence: "D1 fence-before-key",
    NoKeys: "D4 duplicate-once",
    KeyOfTheGeneration: "D4 duplicate-across-owners",
    KeyOfAnyContent: "D4 other-content-refused",
    LosesAcknowledged: "D5 acknowledged-applied",
    ApplyThenCheck: "D6 refused-leaves-nothing",
    RefusedRaisesMark: "D6 refused-leaves-nothing",
    RefusedKeyStays: "D6 refused-leaves-no-key",
    OneMarkForAll: "D7 odd-job-ids",
    JobsByLetters: "D7 odd-job-ids",
    JobsCutOff: "D7 odd-job-ids",
    WriteRaisesNoMark: "D8 unarmed-as-declared",
    UnarmedIsLetIn: "D8 unarmed-as-declared",
    MarkInTheHandle: "D8 mark-survives",
    DuplicateRaisesNoMark: "D8 duplicate-raises-mark",
    ArmRaisesNoMark: "D9 arm-refuses-older",
    SecondArmRefused: "D9 arm-repeatable",
    LocksWhileItWaits: "L2 arm-not-kept-waiting",
    TellsNobody: "L3 refusal-tells-bearer",
    TellsTwice: "L3 refusal-tells-bearer",
    TellsAnother: "L3 refusal-tells-bearer",
    TokenKept: "L3 lapsed-not-sent",
}
