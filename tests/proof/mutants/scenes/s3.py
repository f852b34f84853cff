"""Scenes in a bucket: what is under way is held back inside the client, at its very sending."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session

from mutants.scenes import Ground, Scene
from mutants.scenes.desks import NAME, PART, Desk, lost
from sinkfence.errors import Conflict, OutcomeUnknown, StaleToken
from sinkfence.tokens import Token


def takeover(ground: Ground, first: int = 1, second: int = 2) -> Scene:
    """A's put is under way; B arms and puts; A's put arrives, and A tries once more."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure(first)
    b = scene.issued(second, "B")

    def successor(_: object) -> None:
        other = desk.object(1)
        with scene.arming(b):
            other.arm(b)
        with scene.rightful(b) as attempt:
            other.put(desk.body(b, attempt), b)

    with desk.sending(successor), scene.late(a) as attempt:
        report.put(desk.body(a, attempt), a)
    with scene.late(a) as attempt:
        report.put(desk.body(a, attempt), a)
    other = desk.object(1)
    with scene.rightful(b) as attempt:
        other.put(desk.body(b, attempt), b)
    return scene


def across_31_bits(ground: Ground) -> Scene:
    """The same, A's generation being the last of 31 bits."""
    return takeover(ground, 2**32 - 1 - 3_000_000_000, 2**32 + 1 - 3_000_000_000)


def armed(ground: Ground) -> Scene:
    """A's put is under way; B arms, and does no more; A's put arrives."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()
    b = scene.issued(2, "B")

    def successor(_: object) -> None:
        with scene.arming(b):
            desk.object(1).arm(b)

    with desk.sending(successor), scene.late(a) as attempt:
        report.put(desk.body(a, attempt), a)
    return scene


def delayed_create(ground: Ground) -> Scene:
    """A is about to create the object; B arms, and finds nothing there yet; A's create arrives."""
    desk = Desk(ground)
    scene, a = desk.scene, desk.scene.issued(1, "A")
    b = scene.issued(2, "B")

    def successor(_: object) -> None:
        with scene.arming(b):
            desk.object(1).arm(b)

    with desk.sending(successor), scene.late(a) as attempt:
        desk.object(0).put(desk.body(a, attempt), a)
    with scene.rightful(b) as attempt:
        desk.object(1).put(desk.body(b, attempt), b)
    return scene


def lost_request(ground: Ground) -> Scene:
    """A's put never arrives, and A isn't told; meanwhile B arms."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()
    b = scene.issued(2, "B")

    def successor(request: Any) -> None:
        with scene.arming(b):
            desk.object(1).arm(b)
        lost(request)

    with desk.sending(successor), scene.late(a, also=(OutcomeUnknown,)) as attempt:
        report.put(desk.body(a, attempt), a)
    return scene


def lost_answer(ground: Ground) -> Scene:
    """A's put is applied, and its answer is lost."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()

    def applied(request: Any) -> None:
        URLLib3Session().send(request)
        scene.look()
        lost(request)

    with desk.sending(applied), scene.rightful(a) as attempt:
        report.put(desk.body(a, attempt), a)
    return scene


def same_step(ground: Ground) -> Scene:
    """A has done a step; B, who can't know, does it again."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()
    key = a.key("render")
    with scene.rightful(a, key) as attempt:
        report.put(desk.body(a, attempt, b"page"), a, step="render")
    b = scene.issued(2, "B")
    other = desk.object(1)
    with scene.arming(b):
        other.arm(b)
    with scene.rightful(b, key) as attempt:
        other.put(desk.body(b, attempt, b"page"), b, step="render")
    return scene


def same_step_unarmed(ground: Ground) -> Scene:
    """A's put is under way; B repeats a step of A's without arming, which any write stands for here."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()
    key = a.key("render")
    with scene.rightful(a, key) as attempt:
        report.put(desk.body(a, attempt, b"page"), a, step="render")
    b = scene.issued(2, "B")

    def successor(_: object) -> None:
        body = b"page"
        with scene.rightful(b, key):
            desk.object(1).put(body, b, step="render")
        scene.armed(b)

    with desk.sending(successor), scene.late(a) as attempt:
        report.put(desk.body(a, attempt), a)
    return scene


def answered_from_memory(ground: Ground) -> Scene:
    """A has done a step, and B has armed; A asks for the step again."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()
    key = a.key("render")
    with scene.rightful(a, key) as attempt:
        report.put(desk.body(a, attempt, b"page"), a, step="render")
    b = scene.issued(2, "B")
    with scene.arming(b):
        desk.object(1).arm(b)
    with scene.late(a, key):
        report.put(b"page", a, step="render")
    return scene


def same_content_again(ground: Ground) -> Scene:
    """Two threads of one owner: what the first has read is replaced, and then put there once more."""
    desk = Desk(ground)
    scene, a = desk.scene, desk.scene.issued(1, "A")
    mine, other = desk.object(0), desk.object(1)
    with scene.rightful(a) as first:
        seq = mine.put(desk.body(a, first, b"X"), a).seq
    for text in (b"Y", b"X"):
        with scene.rightful(a) as attempt:
            other.put(desk.body(a, attempt, text), a)
    with suppress(Conflict), scene.writing(a, base=first) as attempt:
        mine.put(desk.body(a, attempt, b"Z"), a, expect=seq)
    return scene


def same_number(ground: Ground) -> Scene:
    """A store that went back gives A's number to B as well: of the two only A's counts."""
    desk = Desk(ground)
    scene, (a, _) = desk.scene, desk.first_tenure()
    b = Token(a.job_id, a.generation, "B:1")
    with suppress(StaleToken):
        desk.object(1).arm(b)
    with scene.late(b) as attempt:
        desk.object(1).put(desk.body(b, attempt), b)
    return scene


def long_takeover(ground: Ground) -> Scene:
    """A has sent its data, and its register is under way; B arms, and does no more; A's register arrives."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()
    with scene.rightful(a) as attempt:
        report.put(desk.long(a, attempt), a)
    b = scene.issued(2, "B")

    def successor(_: object) -> None:
        with scene.arming(b):
            desk.object(1).arm(b)
        scene.look()

    with desk.sending(successor), scene.late(a) as attempt:
        report.put(desk.long(a, attempt), a)
    return scene


def data_under_way(ground: Ground) -> Scene:
    """A's data is under way, and somebody reads."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()
    with desk.sending(lambda _: scene.look(), beside=True), scene.rightful(a) as attempt:
        report.put(desk.long(a, attempt), a)
    return scene


def collected(ground: Ground) -> Scene:
    """A has sent its data, and its register is under way, when somebody collects; B arms, and collects."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()

    def collector(_: object) -> None:
        desk.fenced(1).collect(NAME)

    with desk.sending(collector), scene.rightful(a) as attempt:
        report.put(desk.long(a, attempt), a)
    b = scene.issued(2, "B")
    with scene.arming(b):
        desk.object(1).arm(b)
    desk.fenced(1).collect(NAME)
    scene.look()
    return scene


def deleted(ground: Ground) -> Scene:
    """A is about to create the object; B arms, puts and deletes; A's create arrives."""
    desk = Desk(ground)
    scene, a = desk.scene, desk.scene.issued(1, "A")
    b = scene.issued(2, "B")

    def successor(_: object) -> None:
        other = desk.object(1)
        with scene.arming(b):
            other.arm(b)
        other.put(b"soon gone", b)
        other.delete(b)

    with desk.sending(successor), scene.late(a) as attempt:
        desk.object(0).put(desk.body(a, attempt), a)
    return scene


def nothing_read_back(ground: Ground) -> Scene:
    """A's register is applied, its answer is lost, and nothing can be read: nobody can tell A."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()

    def applied(request: Any) -> None:
        URLLib3Session().send(request)
        lost(request)

    with suppress(OutcomeUnknown), scene.writing(a) as attempt:
        with desk.sending(applied), desk.silent():
            report.put(desk.long(a, attempt), a)
    scene.look()
    return scene


def caught(ground: Ground) -> Scene:
    """A writes a file; of its second piece nothing can be sent, and A catches that, and goes on."""
    desk = Desk(ground)
    scene, (a, report) = desk.scene, desk.first_tenure()
    with suppress(ValueError), scene.writing(a) as attempt:
        pieces = [f"{attempt} {number}".encode().ljust(PART) for number in range(3)]
        desk.body(a, attempt, b"".join(pieces))
        with report.open(a) as file:
            file.write(pieces[0])
            with desk.silent("CreateMultipartUpload"), suppress(ConnectionClosedError):
                file.write(pieces[1])
            file.write(pieces[2])
    return scene
