"""The sweep over message boundaries: owners frozen or cut off at each message of a tenure.

A clean tenure through the proxy says how many messages there are. Then, for each of them, the old owner is
frozen there (its request written and not delivered, or done and the reply not delivered), and something
happens meanwhile. The old owner never learns of it but from the destination: it believes for ever that its
lease is fine. What happened is judged by the checker, from what each side was told and from the truth, which
is read past the sink.
"""

from sweep.cases import Case, Place, messages
from sweep.diary import Diary, Effect
from sweep.pairs import pairs, play_pair
from sweep.repetition import play_repetition, repetitions
from sweep.takeover import play, sweep

__all__ = [
    "Case",
    "Diary",
    "Effect",
    "Place",
    "messages",
    "pairs",
    "play",
    "play_pair",
    "play_repetition",
    "repetitions",
    "sweep",
]
