"""A process that owns a PostgreSQL server, tells what there is of it, and waits for a line, or to be killed.

`crash` kills the server first, `fork` leaves a stopped copy of this process, `s3` owns an S3 server too.
"""

import contextlib
import json
import os
import signal
import sys

from sinkfence_trials.servers.postgres import postgres
from sinkfence_trials.servers.s3 import GRPC, s3
from sinkfence_trials.servers.supervisor import children

with postgres() as database, contextlib.ExitStack() as more:
    assert database.cluster is not None
    sockets = []
    if "s3" in sys.argv:
        endpoint = more.enter_context(s3()).endpoint
        sockets = [f"/tmp/seaweedfs-s3-grpc-{int(endpoint.rpartition(':')[2]) + GRPC}.sock"]
    if "crash" in sys.argv:
        database.cluster.kill()
    supervisors = children(os.getpid())
    fork = None
    if "fork" in sys.argv:
        fork = os.fork()
        if fork == 0:
            # It has its parent's files, the pipes to the supervisors among them, and never goes by itself.
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
    servers = [pid for supervisor in supervisors for pid in children(supervisor)]
    said = {
        "supervisors": supervisors,
        "servers": servers,
        "backends": [pid for server in servers for pid in children(server)],
        "postmaster": database.cluster.pid,
        "paths": [str(database.cluster.data.parent), *sockets],
        "fork": fork,
    }
    print(json.dumps(said), flush=True)
    sys.stdin.readline()
