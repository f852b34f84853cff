"""Mutants of what holds leases: the manager, its heartbeat, and the same for an event loop."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

HEARTBEAT = "src/sinkfence/leases/heartbeat.py"
TENURE = "src/sinkfence/leases/tenure.py"
HOLDER = "src/sinkfence/leases/holder.py"
ARMING = "src/sinkfence/leases/arming.py"
LOOPS = "src/sinkfence/leases/loops.py"
OBSERVE = "src/sinkfence/observe.py"
FLOWS = "src/sinkfence/flows.py"

MANAGERS: tuple[Mutant, ...] = (
    Mutant(
        "an error of the store taken for a loss",
        "managers.one_error",
        "L4",
        "one dropped packet ends the leases of all jobs of the process",
        (
            Edit(
                HEARTBEAT,
                "            self._again_soon(list(batch.values()))\n",
                "            for each in batch:\n                each.gone(str(error), settled=False)\n",
            ),
        ),
    ),
    Mutant(
        "a renewal that failed is tried at the next beat only",
        "managers.one_error",
        "L4",
        "with a slow heartbeat one dropped packet costs the lease",
        (Edit(HEARTBEAT, "            self._again_soon(list(batch.values()))\n", ""),),
    ),
    Mutant(
        "a skipped row taken for a loss",
        "managers.one_locked_row",
        "L4",
        "a report that locks the row for a moment ends the lease",
        (
            Edit(
                HEARTBEAT,
                "elif token in answer.lost:\n                tenure.gone(answer.lost[token], settled=False)",
                'else:\n                tenure.gone(answer.lost.get(token, "skipped"), settled=False)',
            ),
        ),
    ),
    Mutant(
        "an older answer shortens the term",
        "managers.renewals_overtake",
        "L4",
        "a worker that has just renewed is told that its time is up",
        (Edit(TENURE, "if asked > self._term.asked and self.end is None:", "if self.end is None:"),),
    ),
    Mutant(
        "one's own completion taken for a loss",
        "managers.seen_while_completing",
        "L4",
        "on_lost pages somebody for a job that has just been done",
        (Edit(TENURE, "        if unanswered:\n            return  # its answer decides\n", ""),),
    ),
    Mutant(
        "no heartbeat while the sinks are armed",
        "managers.slow_arming",
        "L4",
        "a sink that takes longer than the ttl can never be armed",
        (
            Edit(HOLDER, "                self._heartbeat.add(held.tenure, interval)\n", ""),
            Edit(
                HOLDER,
                "held.lease.token)\n                return held",
                "held.lease.token)\n                self._heartbeat.add(held.tenure, interval)\n"
                "                return held",
            ),
        ),
    ),
    Mutant(
        "what was seen of a later owner is not told",
        "managers.overtaken",
        "L3",
        "the worker goes on beside its successor until its term is over",
        (Edit(HEARTBEAT, "elif token in answer.lost:", "elif token in answer.lost and False:"),),
    ),
    Mutant(
        "a term that ran out is not told",
        "managers.cut_off",
        "L3",
        "a worker that is cut off from the store works on and on",
        (
            Edit(
                TENURE,
                "        if over:\n            self._announce(LeaseLost(self.token, TERM_OVER))\n",
                "",
            ),
        ),
    ),
    Mutant(
        "a loss told twice",
        "managers.overtaken",
        "L3",
        "on_lost, which may stop a service or page somebody, runs again",
        (
            Edit(
                TENURE,
                "        if self._end.offer(why):\n            self._announce",
                "        if self._end.offer(why) or True:\n            self._announce",
            ),
        ),
    ),
    Mutant(
        "sys.exit() in a callback ends the telling",
        "managers.callback_exits",
        "L3",
        "no later loss of the process is told to anybody",
        (
            Edit(
                HEARTBEAT,
                "except BaseException:  # noqa: BLE001 - their sys.exit()",
                "except Exception:  # noqa: BLE001 - their sys.exit()",
            ),
        ),
    ),
    Mutant(
        "a failing log handler stops the news",
        "managers.failing_filter",
        "L3",
        "a filter that knows requests only keeps a worker from hearing that it has lost its lease",
        (
            Edit(
                OBSERVE,
                '        with suppress(Exception):\n            kwargs.setdefault("stacklevel", 2)',
                '        if True:\n            kwargs.setdefault("stacklevel", 2)',
            ),
        ),
    ),
    Mutant(
        "a takeover not told at the end",
        "managers.overtaken",
        "L3",
        "hold() ends in peace though somebody else has done the job meanwhile",
        (Edit(HOLDER, "(isinstance(failed, LeaseLost) or not was_ours)", "False"),),
    ),
    Mutant(
        "a term from the answer on",
        "managers.slow_answers",
        "L3",
        "this side believes in its lease for longer than the store does",
        (
            Edit(
                HOLDER,
                "taken = self._take(grant, asked, ttl)",
                "taken = self._take(grant, self._clock(), ttl)",
            ),
        ),
    ),
    Mutant(
        "a lease that is over on arrival is handed out",
        "managers.slow_answers",
        "L3",
        "the body begins when somebody else may have been let in",
        (Edit(HOLDER, "if taken.tenure.remaining() <= 0:", "if taken.tenure.remaining() <= -ttl:"),),
    ),
    Mutant(
        "a forked child keeps the lease",
        "managers.forked",
        "L3",
        "two processes work under one token",
        (Edit(TENURE, "return this_process() != self._process", "return False"),),
    ),
    Mutant(
        "a closed manager's leases go on",
        "managers.closed",
        "L3",
        "a worker that shuts down shows tokens of jobs that it has given back",
        (Edit(HOLDER, "        for tenure in held:\n            tenure.finish(RELEASED, None)\n", ""),),
    ),
    Mutant(
        "StaleToken swallowed by the asynchronous hold()",
        "managers.refused_in_a_loop",
        "L3",
        "the program goes on as if its work had been taken",
        (
            Edit(
                "src/sinkfence/aio.py",
                "await drive_async(here.leave(held, error))\n                raise",
                "await drive_async(here.leave(held, error))\n                return",
            ),
        ),
    ),
    Mutant(
        "any mark is believed",
        "managers.mistaken_mark",
        "L1",
        "one sink with a mistaken mark uses up all numbers of the job, for ever",
        (Edit(ARMING, "> LARGEST_JUMP and not means.store.jumps:", "> LARGEST_JUMP and False:"),),
    ),
    Mutant(
        "no room made above a refusal",
        "managers.store_went_back",
        "L1",
        "after a failover each owner of the job is refused, until the count has caught up by itself",
        (
            Edit(
                HOLDER,
                "yield from self._make_room(tenure, tenure.refusal)",
                "yield from self._release_quietly(tenure.token, 1.0)",
            ),
        ),
    ),
    Mutant(
        "a failing meter fails the acquisition",
        "managers.failing_meter",
        "L1",
        "no job can be acquired while the telemetry is down",
        (
            Edit(
                OBSERVE,
                "        with suppress(Exception):\n            telemetry.acquisitions.add(1)",
                "        if True:\n            telemetry.acquisitions.add(1)",
            ),
        ),
    ),
    Mutant(
        "a late renewal is kept",
        "managers.late_renewal",
        "L5",
        "a job that nobody works on is held for one more ttl",
        (Edit(HEARTBEAT, "                    self._give_back(tenure)\n", "                    pass\n"),),
    ),
    Mutant(
        "a renewal counts as in time though it is over",
        "managers.late_renewal",
        "L5",
        "a worker that was told of its loss holds the job on, and does not know it",
        (
            Edit(
                TENURE,
                "return self.end is None and self._term.remaining(self._clock()) > 0",
                "return asked > 0",
            ),
        ),
    ),
    Mutant(
        "what has ended is beaten on",
        "managers.closed",
        "L5",
        "the heartbeat asks for ever after jobs that were done long ago",
        (
            Edit(
                HEARTBEAT,
                "self._beating.pop(tenure, None)\n            if loss",
                "self._beating.get(tenure)\n            if loss",
            ),
            Edit(
                HEARTBEAT,
                "                    self._beating.pop(tenure, None)\n",
                "                    pass\n",
            ),
        ),
    ),
    Mutant(
        "nothing given back after a failed arming",
        "managers.failing_arm",
        "L5",
        "a sink that is down keeps the job from everybody for a ttl, each time",
        (
            Edit(
                HOLDER,
                "            except BaseException:\n                yield from self._give_up(held.tenure)\n",
                "            except BaseException:\n",
            ),
        ),
    ),
    Mutant(
        "errors do not reach the flow",
        "managers.failing_arm",
        "L5",
        "a lease that was to be given back after an error is not",
        (
            Edit(
                FLOWS,
                "answer = call()\n            except BaseException as error:"
                "  # noqa: BLE001 - the flow decides\n                call = flow.throw(error)",
                "answer = call()\n            except BaseException:\n                raise",
            ),
        ),
    ),
    Mutant(
        "errors do not reach the flow in a loop",
        "managers.failing_arm_in_a_loop",
        "L5",
        "a lease that was to be given back after an error is not",
        (
            Edit(
                FLOWS,
                "answer = await call()\n            except BaseException as error:"
                "  # noqa: BLE001 - the flow decides\n                call = flow.throw(error)",
                "answer = await call()\n            except BaseException:\n                raise",
            ),
        ),
    ),
    Mutant(
        "an acquisition that comes after the close",
        "managers.close_overtakes",
        "L5",
        "a process that has shut down holds a job that nobody releases",
        (
            Edit(
                HOLDER,
                "        try:\n            self._refuse_closed()\n            if taken",
                "        try:\n            if taken",
            ),
        ),
    ),
    Mutant(
        "a release is waited for without end",
        "managers.store_hangs",
        "L5",
        "a store that hangs keeps every worker at the end of its body",
        (
            Edit(
                "src/sinkfence/leases/asking.py",
                "within(seconds, partial(_error_of, self._store.release, token))",
                "_error_of(self._store.release, token)",
            ),
        ),
    ),
    Mutant(
        "a batch is waited for without end",
        "managers.one_batch_hangs",
        "L4",
        "one server process that stands still ends all leases of the client's process",
        (Edit(HEARTBEAT, "max(shortest * waits.BATCH, waits.BATCH_AT_LEAST)", "3600.0"),),
    ),
    Mutant(
        "a release is waited for without end in a loop",
        "managers.store_hangs_in_a_loop",
        "L5",
        "a store that hangs keeps every task at the end of its body",
        (
            Edit(
                LOOPS,
                "await self._whole(token.job_id, seconds, self._store.release(token), None, seconds)",
                "await self._store.release(token)",
            ),
        ),
    ),
    Mutant(
        "a cancelled acquisition is forgotten",
        "managers.cancelled",
        "L5",
        "each client that goes while its request acquires leaves a job held for a ttl",
        (
            Edit(
                LOOPS,
                "ttl, self._store.acquire(job_id, owner, ttl), self._give_back)",
                "ttl, self._store.acquire(job_id, owner, ttl), None)",
            ),
        ),
    ),
    Mutant(
        "a cancellation reaches the request",
        "managers.cancelled",
        "L5",
        "the same, as the answer that says what was granted is heard by nobody",
        (
            Edit(
                LOOPS,
                "await asyncio.wait([task], timeout=seconds)",
                "await asyncio.wait_for(task, seconds)",
            ),
        ),
    ),
    Mutant(
        "the body runs before a sink has armed",
        "managers.armed_elsewhere",
        "D9",
        "a late writer may still change the rows that the body has read",
        (
            Edit(
                ARMING,
                "if inspect.isawaitable(answer) or is_future(answer):",
                "if inspect.isawaitable(answer):",
            ),
        ),
    ),
    Mutant(
        "the body runs before a sink has armed in a loop",
        "managers.armed_elsewhere_in_a_loop",
        "D9",
        "a late writer may still change the rows that the body has read",
        (Edit("src/sinkfence/aio.py", "    if is_future(answer):", "    if False:"),),
    ),
)
