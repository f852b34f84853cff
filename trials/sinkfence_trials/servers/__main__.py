"""A PostgreSQL and an S3 server to try things on: `python -m sinkfence_trials.servers [postgres] [s3]`."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys

from sinkfence_trials.servers.postgres import postgres
from sinkfence_trials.servers.s3 import s3
from sinkfence_trials.servers.supervised import ServerError

KINDS = ("postgres", "s3")
ENDS = (signal.SIGINT, signal.SIGTERM)


def main(wanted: list[str]) -> int:
    """Start servers, print what to export, stay until Ctrl-C or SIGTERM; return the exit code.

    Returns:
        0 after Ctrl-C or SIGTERM, 2 for a wrong usage, 3 if a server could not be had.
    """
    if not set(wanted) <= set(KINDS):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with contextlib.ExitStack() as servers:
            exports: dict[str, str] = {}
            if "postgres" in wanted:
                dsn = servers.enter_context(postgres()).dsn
                exports |= {"DATABASE_URL": dsn.replace("postgresql://", "postgresql+psycopg://", 1)}
            if "s3" in wanted:
                server = servers.enter_context(s3())
                exports |= {
                    "AWS_ENDPOINT_URL_S3": server.endpoint,
                    "AWS_ACCESS_KEY_ID": server.access_key,
                    "AWS_SECRET_ACCESS_KEY": server.secret_key,
                    "AWS_DEFAULT_REGION": server.region,
                    "BUCKET": server.bucket,
                }
            # Kept pending from here: one that came just before it is waited for would else be lost.
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
            for name, value in exports.items():
                print(f"export {name}={shlex.quote(value)}")
            print("# until Ctrl-C", flush=True)
            signal.sigwait(ENDS)
    except ServerError as error:
        print(f"sinkfence_trials.servers: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(KINDS)))
