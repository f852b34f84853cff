/* The core of the model in Promela: one job, WORKERS that are late, a wire that delays and repeats, one destination.

   The same verdicts as tests/proof/model, for larger bounds: more owners, more writes of each, repetitions.

     spin -a -DVARIANT=2 sinkfence.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan

   VARIANT   0  no check                                            broken: D9, and D1 where nobody arms
             1  check, mark and effect in one atomic step           holds
             2  check at the door, apply later                      broken: D9, and D1 where nobody arms
             3  the door, and again in the applying transaction     holds
             4  inside COMMIT: the shared lock, then the mark       holds
             5  inside COMMIT: the mark, then the shared lock       broken: D9

   A lease may expire whenever it is held, and every process may pause between any two steps: no clock is
   needed, and what holds here holds for every ttl. The generation is the owner: each worker acquires once. */

#ifndef VARIANT
#define VARIANT 1
#endif
#ifndef WORKERS
#define WORKERS 3    /* at most 4 */
#endif
#ifndef WRITES
#define WRITES 2     /* by each worker */
#endif
#ifndef COPIES
#define COPIES 1     /* how often the wire may deliver one of them */
#endif
#ifndef ARM
#define ARM 1        /* 0: nobody arms before writing (variants 0 to 3) */
#endif
#ifndef HANDLERS
#define HANDLERS 3   /* requests that may be inside the destination at a time */
#endif

byte counter;        /* the lease store's: generations are issued from 1 */
bool held;           /* the lease is live by the store's clock */
byte mark;           /* the highest generation that the destination has seen */
byte highest;        /* the highest generation that was applied */
byte armed;          /* the highest generation whose arming has been acknowledged */
byte shared;         /* how many transactions hold the shared lock */
byte wire[5];        /* how many deliveries of each generation's writes are under way */

inline apply(generation) {
    assert(generation >= highest);   /* D1: applied generations never go back */
    assert(generation >= armed);     /* D9: after arm(g) returned, nothing below g is applied */
    highest = generation
}

/* Acquire; arm, and learn whether one is stale; then write, without hearing what became of it. */
proctype Worker() {
    byte mine, written;
    atomic { !held -> counter++; mine = counter; held = true }
    /* the lease expires at some time: an owner goes on, and does not know */
#if ARM
    atomic { (shared == 0) ->   /* the exclusive lock waits for whoever holds the shared one */
        if
        :: mark > mine -> goto stale
        :: else -> mark = mine; armed = mine
        fi
    }
#endif
    do
    :: written < WRITES -> atomic { wire[mine] = wire[mine] + COPIES; written++ }
    :: else -> break
    od;
stale:
    skip
}

proctype Clock() {
end:
    do
    :: atomic { held -> held = false }
    od
}

/* One request at a time; several of these stand for a destination that handles several. */
proctype Handler() {
    byte one;
end:
    do
    :: atomic {
           if   /* the wire keeps no order */
           :: wire[1] > 0 -> one = 1
           :: wire[2] > 0 -> one = 2
           :: wire[3] > 0 -> one = 3
           :: wire[4] > 0 -> one = 4
           fi;
           wire[one]--
       }
#if VARIANT == 0
       atomic { apply(one) }
#elif VARIANT == 1
       atomic {
           if
           :: one < mark -> skip
           :: else -> mark = one; apply(one)
           fi
       }
#elif VARIANT == 2
       atomic {
           if
           :: one < mark -> goto refused
           :: else -> mark = one
           fi
       }
       atomic { apply(one) }
#elif VARIANT == 3
       atomic {
           if
           :: one < mark -> goto refused
           :: else -> mark = one
           fi
       }
       atomic {
           if
           :: one < mark -> skip
           :: else -> apply(one)
           fi
       }
#elif VARIANT == 4
       shared++;
       if
       :: atomic { one != mark -> shared--; goto refused }
       :: one == mark
       fi;
       atomic { apply(one); shared-- }
#elif VARIANT == 5
       if
       :: one != mark -> goto refused
       :: one == mark
       fi;
       shared++;
       atomic { apply(one); shared-- }
#endif
refused:
       one = 0
    od
}

init {
    byte i;
    atomic {
        for (i : 1 .. WORKERS) { run Worker() }
        for (i : 1 .. HANDLERS) { run Handler() }
        run Clock()
    }
}
