"""A run's page: whole, bounded, and not to be fooled by what a history has in it."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise

import pytest

from sinkfence_trials import timeline
from sinkfence_trials.checker import Violation, check
from sinkfence_trials.history import Event
from sinkfence_trials.timeline.picture import picture
from sinkfence_trials.timeline.plan import NARROW, WIDE
from sinkfence_trials.timeline.reading import read
from sinkfence_trials.timeline.run import Run

JOB = "reports/latest"
CLOCK = 1_700_000_000.0
"""What the store's clock says at the history's beginning."""
HOSTILE = "</title></svg><script>alert(1)</script>\" onload='x' & \ud800\x00\x1b\u202e]]>"


def grant(worker: str, generation: int, t: float, *, job: str = JOB, ttl: float = 2.0) -> Iterator[Event]:
    """A grant, and the arming of a destination."""
    owner = f"{worker}:{generation}"
    yield Event(t, worker, "acquire", "invoke", job)
    term = {"now": CLOCK + t, "until": CLOCK + t + ttl, "ttl": ttl}
    yield Event(t + 0.01, worker, "acquire", "ok", job, generation, None, {"owner": owner, **term})
    yield Event(t + 0.02, worker, "arm", "ok", job, generation, None, {"owner": owner, "sink": "ledger"})


def write(
    worker: str, generation: int, sent: float, came: float, outcome: str, *, job: str = JOB
) -> Iterator[Event]:
    """An attempt, its effect if it has one, and its answer."""
    value = {"owner": f"{worker}:{generation}", "sink": "ledger", "id": f"{worker}/{generation}/{sent}"}
    yield Event(sent, worker, "write", "invoke", job, generation, f"step {sent}", value)
    if outcome == "ok":
        yield Event(came, "observer", "effect", "ok", job, generation, f"step {sent}", value)
    error = {"error": "StaleToken"} if outcome == "fail" else {}
    yield Event(came, worker, "write", outcome, job, generation, f"step {sent}", value | error)  # type: ignore[arg-type]


def story(late: str, job: str = JOB) -> list[Event]:
    """A worker that is stopped with a write under way, its successor, and what becomes of the late write."""
    events = [
        *grant("worker A", 7, 0.0, job=job),
        *write("worker A", 7, 0.5, 4.0, late, job=job),
        Event(0.6, "nemesis", "fault", "invoke", "", value={"kind": "pause", "target": "worker A"}),
        Event(3.9, "nemesis", "fault", "ok", "", value={"kind": "pause", "target": "worker A"}),
        *grant("worker B", 8, 2.5, job=job),
        *write("worker B", 8, 3.0, 3.1, "ok", job=job),
    ]
    return sorted(events, key=lambda event: event.t)


def parsed(page: str) -> ET.Element:
    """The page as XML; ParseError where it is none."""
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def drawn(run: Run) -> ET.Element:
    """The wide picture."""
    return ET.fromstring(f"<svg>{picture(run, WIDE).body}</svg>")


def titles(element: ET.Element) -> list[str]:
    """The tooltips in it."""
    return [title.text or "" for title in element.iter("title")]


def test_every_event_of_a_small_run_is_drawn() -> None:
    """Each hold, pause, attempt, effect and refusal has its place in the picture, with a tooltip."""
    told = titles(drawn(read(story("fail"), [])))
    for words in (
        "generation 7: worker A, for 2.0 s, ran out",
        "generation 8: worker B, for 2.0 s, ran out",
        "worker A: pause, 3.3 s",
        "worker A, generation 7: begins: write of step 0.5",
        "worker A, generation 7: write of step 0.5 refused: StaleToken",
        "worker B, generation 8: begins: write of step 3.0",
        "worker B, generation 8: write of step 3.0 took effect",
        "has seen generation 7",
        "has seen generation 8",
    ):
        assert told.count(words) == 1, (words, told)


def test_a_red_line_leads_from_what_broke_a_rule_to_its_request() -> None:
    """The line begins at the worker when it set out, and ends at the destination when it took effect."""
    events = story("ok")
    violations = check(events)
    assert "D1" in {violation.invariant for violation in violations}
    run = read(events, violations)
    (line,) = [path for path in drawn(run).iter("path") if "wrong" in path.get("class", "")]
    begin, end = line.get("d", "").removeprefix("M").split("L")
    (request,) = [each for each in run.of("request") if each.worker == "worker A"]
    (flaw,) = run.of("flaw")
    assert (request.t, flaw.t, flaw.began) == (0.5, 4.0, 0.5)
    (begin_x, begin_y), (end_x, end_y) = (map(float, at.split(" ")) for at in (begin, end))
    assert begin_x < end_x
    assert begin_y < end_y
    page = timeline.page(events, violations, "A run")
    assert "Rules were broken" in page
    assert 'href="#flaw-1"' in page
    assert 'id="flaw-1"' in page


def test_lanes_stand_in_one_order_under_their_names() -> None:
    """Workers by number, then servers, then jobs by name: none is called job twice."""
    fault = {"kind": "kill", "target": "S3"}
    events = [
        Event(0.0, "nemesis", "fault", "ok", "", value=fault),
        *grant("worker 10", 7, 0.1, job="run/job-2"),
        *grant("worker 2", 7, 0.2, job="invoice"),
    ]
    run = read(events, [])
    assert (run.workers, run.servers) == (["worker 2", "worker 10"], ["S3"])
    names = [
        text.text for text in drawn(run).iter("text") if text.get("class", "").split()[0] in ("name", "head")
    ]
    assert names == [
        *("job invoice", "run/job-2"),
        *("worker 2", "worker 10", "S3", "lease store", "ledger", "lease store", "ledger"),
    ]
    assert "2 jobs, 2 workers, 2 generations" in timeline.page(events, [], "A run")


def test_a_run_in_which_nothing_was_broken_has_no_red_line() -> None:
    """A refused late write has a line of its worker's colour, and the page says that no rule was broken."""
    events = story("fail")
    assert check(events) == []
    classes = [path.get("class", "") for path in drawn(read(events, [])).iter("path")]
    assert not any("wrong" in each for each in classes)
    assert sum("late" in each for each in classes) == 1
    assert "No rule was broken." in timeline.page(events, [], "A run")


@pytest.mark.parametrize("late", ["ok", "fail", "info"])
def test_a_hostile_name_stays_text(late: str) -> None:
    """A job id with markup, quotes and characters that XML has none for is shown, and is never markup."""
    events = story(late, job=HOSTILE)
    page = timeline.page(events, check(events), HOSTILE)
    page.encode("utf-8")
    root = parsed(page)
    assert {each.tag for each in root.iter()} <= {
        *(
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "h1",
            "h2",
            "div",
            "strong",
            "ul",
            "li",
            "a",
            "bdi",
        ),
        *("figure", "svg", "defs", "pattern", "path", "rect", "circle", "g", "text"),
        *("table", "thead", "tbody", "tr", "th", "td", "p"),
    }
    assert not any(name.startswith("on") for each in root.iter() for name in each.attrib)
    assert any("<script>alert(1)</script>" in (title.text or "") for title in root.iter("title"))


@pytest.mark.parametrize("events", [[], [Event(3.0, "w", "heal", "ok", "")], story("ok")[:1]])
def test_next_to_nothing_is_a_page_too(events: list[Event]) -> None:
    """A history without events, or with a single one, makes a well-formed page."""
    parsed(timeline.page(events, [], "Nothing"))


def test_an_invariant_broken_by_an_event_of_no_job_is_shown_at_its_job() -> None:
    """What is told of a heal, that nothing was applied after it, stands at the job that it is about."""
    events = [*story("fail"), Event(9.0, "nemesis", "heal", "ok", "")]
    violations = check(events)
    assert [violation.invariant for violation in violations] == ["L1"]
    (flaw,) = read(events, violations).of("flaw")
    assert flaw.lane.name == JOB
    assert "L1" in timeline.page(events, violations, "A run")


def long_run(count: int) -> list[Event]:
    """Workers that take turns, and write; some are refused, and some are paused."""
    events: list[Event] = []
    generation, t = 0, 0.0
    while len(events) < count:
        generation, t = generation + 1, t + 1.0
        worker, before = f"worker {generation % 5}", f"worker {(generation - 1) % 5}"
        events += grant(worker, generation, t)
        for each in range(15):
            events += write(worker, generation, t + 0.1 + each * 0.05, t + 0.11 + each * 0.05, "ok")
        if generation % 10 == 0:
            events += write(before, generation - 1, t - 0.2, t + 0.5, "fail")
        if generation % 40 == 0:
            value = {"kind": "pause", "target": worker}
            events.append(Event(t + 0.2, "nemesis", "fault", "invoke", "", value=value))
            events.append(Event(t + 0.9, "nemesis", "fault", "ok", "", value=value))
    return sorted(events, key=lambda event: event.t)


def made_up(events: list[Event], every: int) -> list[Violation]:
    """Violations of so many effects."""
    stale = [event for event in events if event.f == "effect"][::every]
    return [Violation("D1", JOB, f"made up {number}", event) for number, event in enumerate(stale)]


def test_thinning_keeps_what_matters() -> None:
    """Of twenty thousand events every fault, flaw and refusal is drawn, or counted by one that is."""
    events = long_run(20_000)
    violations = made_up(events, 200)
    run = read(events, violations)
    told = titles(drawn(run))

    def count(what: str) -> int:
        found = [words for words in told if what in words]
        more = [int(words.rpartition(", and ")[2].split()[0]) for words in found if words.endswith(" more")]
        return len(found) + sum(more)

    assert count("D1: made up") == len(violations)
    assert count(": pause, ") == len(run.faults)
    assert count("refused") == sum(event.type == "fail" for event in events)
    page = timeline.page(events, violations, "A long run")
    parsed(page)
    for number in range(len(violations)):
        assert f"made up {number}" in page


def test_a_run_with_many_violations_is_a_page_of_bounded_size_that_says_what_is_left_out() -> None:
    """Of eight hundred flaws the first hundred have lines, to which the picture's marks are links."""
    events = long_run(40_000)
    violations = made_up(events, 15)
    assert len(violations) > 800
    page = timeline.page(events, violations, "A long run")
    assert len(page.encode()) < 1_000_000
    root = parsed(page)
    (note,) = [each for each in root.iter("p") if each.get("class") == "note"]
    assert f"{len(violations) - 100} broken rules" in (note.text or "")
    links = {each.get("href", "").removeprefix("#") for each in root.iter("a")}
    anchors = {each.get("id") for each in root.iter("tr") if each.get("id")}
    assert links <= anchors
    assert len(anchors) == 100


def test_a_long_run_is_made_in_linear_time() -> None:
    """Ten times the events is little more than ten times the work, and not ten times the page."""

    def made(count: int) -> tuple[int, float]:
        events = long_run(count)
        # The processor's time of this thread: what else the machine does is not in it.
        begin = time.thread_time()
        page = timeline.page(events, [], "A long run")
        return len(page), time.thread_time() - begin

    small, quick = min(made(3_000) for _ in range(3))
    large, slow = made(30_000)
    assert large < 1_000_000
    assert large < 5 * small
    assert slow < 40 * quick


def test_what_waited_in_a_worker_is_drawn_there_until_it_was_sent() -> None:
    """The line goes along the worker's lane until it says that it was sent, and then to the destination."""
    late = Event(
        4.0, "worker A", "write", "fail", JOB, 7, "a step", {"sink": "ledger", "id": "1", "sent": 3.9}
    )
    asked = Event(0.5, "worker A", "write", "invoke", JOB, 7, "a step", late.value)
    run = read([*grant("worker A", 7, 0.0), asked, late], [])
    (line,) = [path for path in drawn(run).iter("path") if "late" in path.get("class", "")]
    (_, begin_y), along, (end_x, end_y) = (
        tuple(map(float, at.split(" "))) for at in line.get("d", "")[1:].replace("H", "L").split("L")
    )
    assert begin_y < end_y
    assert along[0] < end_x


@pytest.mark.parametrize("format", [WIDE, NARROW], ids=lambda format: format.name)
@pytest.mark.parametrize("late", ["ok", "fail"])
def test_words_beside_marks_do_not_lie_on_one_another(format, late) -> None:  # type: ignore[no-untyped-def]
    """On each lane, no two words and no word and foreign mark share a place."""
    events = [*story(late), *write("worker A", 7, 0.7, 4.2, late), *write("worker A", 7, 0.8, 4.25, late)]
    run = read(events, check(sorted(events, key=lambda event: event.t)))
    root = ET.fromstring(f"<svg>{picture(run, format).body}</svg>")
    notes: dict[str, list[tuple[float, float]]] = {}
    for text in root.iter("text"):
        if "note" in text.get("class", ""):
            begin = float(text.get("x", ""))
            place = begin, begin + len(text.text or "") * 0.55 * 12
            assert place[1] <= format.width
            notes.setdefault(text.get("y", ""), []).append(place)
    assert notes
    for places in notes.values():
        places.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(places))


def test_write_replaces_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The page is written over whatever is there."""
    file = tmp_path / "run.html"
    file.write_text("something longer than nothing")
    events = story("fail")
    timeline.write(file, events, [], "A run")
    assert file.read_text(encoding="utf-8") == timeline.page(events, [], "A run")
