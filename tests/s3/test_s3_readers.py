"""Readers find whole contents, whatever writers, takeovers and collectors do meanwhile."""

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sinkfence.errors import Conflict, StaleToken
from sinkfence.tokens import Token

LOW = 3_000_000_000
LONG = 1100 * 1024
"""Bytes: more than a register holds."""


def test_readers_see_whole_contents_while_writers_take_over_and_zombies_collect(fenced):
    """Three writers take the job from each other and put long contents; zombies of old generations put and
    collect all the time; two readers find whole contents, never older than one that they have seen."""
    numbers, lock = itertools.count(LOW), threading.Lock()
    over, old, wrong = threading.Event(), [], []
    seen = Counter()

    def content(generation, turn):
        return f"{generation} {turn:4}\n".encode() * (LONG // 16)

    def writer(which):
        thing = fenced.object("r")
        for _ in range(6):
            with lock:
                token = Token("j", next(numbers), f"w{which}:1")
            try:
                thing.arm(token)
                for turn in range(2):
                    thing.put(content(token.generation, turn), token)
                    seen["puts"] += 1
            except StaleToken:
                seen["stale"] += 1
            old.append(token)

    def zombie():
        while not over.is_set():
            seen["collected"] += len(fenced.collect("r"))
            if old:
                try:
                    fenced.object("r").put(content(1, 1), old[0])
                    wrong.append("a zombie's put was accepted")
                except StaleToken:
                    pass

    def reader():
        last = 0
        while not over.is_set():
            try:
                with fenced.object("r").get() as file:
                    data, seq = file.read(), file.stat.seq
            except KeyError:
                if last:
                    wrong.append("content that was there is gone")
                continue
            except Conflict:
                seen["again"] += 1
                continue
            line = data[:16]
            if data != line * (len(data) // 16) or len(data) // 16 != LONG // 16 or seq < last:
                wrong.append((seq, last, data[:40]))
            last = seq
            seen["reads"] += 1

    def guarded(call):
        try:
            call()
        except Exception as error:
            wrong.append(error)

    with ThreadPoolExecutor(4) as others, ThreadPoolExecutor(3) as writers:
        running = [others.submit(guarded, call) for call in (zombie, zombie, reader, reader)]
        list(writers.map(lambda which: guarded(lambda: writer(which)), range(3)))
        over.set()
        [each.result() for each in running]
    assert wrong == []
    assert seen["puts"] > 0
    assert seen["reads"] > 0
    assert seen["collected"] > 0
