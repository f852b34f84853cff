"""Runs tests against servers in containers, where an engine can be had; says what was run, or why not.

    python3 run.py sh python tests/containers [arguments for pytest]

The images are `SINKFENCE_TEST_POSTGRES_IMAGE` and `SINKFENCE_TEST_S3_IMAGE`, pulled if need be; where they
aren't given, images are made of the wheels.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import docker
from docker.errors import DockerException
from engine import NoEngine, engine
from images import postgres_image, s3_image

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/servers/test_selection.py",
    "tests/contract/test_real_stores.py",
    "tests/postgres/test_sink.py",
    "tests/s3/test_s3_fence.py",
)
POSTGRES, S3 = "SINKFENCE_TEST_POSTGRES_IMAGE", "SINKFENCE_TEST_S3_IMAGE"
MADE = {POSTGRES: postgres_image, S3: s3_image}
LIMIT = 90
"""Seconds for the tests, on an engine that may be anybody's, and as slow as may be."""


def main(arguments: list[str]) -> int:
    """Return pytest's exit code, or 0 where it could not be run, or not to its end."""
    try:
        with engine() as address:
            code = run(address, arguments)
    except NoEngine as why:
        print(f"containers: NOT RUN: {why}")
        return 0
    print(f"containers: run, pytest's exit code {code}")
    return code


def run(address: str, arguments: list[str]) -> int:
    """Run the tests with an engine.

    Raises:
        NoEngine: it runs no container of ours, or is too slow.
    """
    variables = os.environ | images(address) | {"DOCKER_HOST": address, "SINKFENCE_TEST_PULL": "1"}
    command = [sys.executable, "-m", "pytest", "--backend", "testcontainers", *(arguments or TESTS)]
    tests = subprocess.Popen(command, cwd=ROOT, env=variables)
    try:
        return tests.wait(LIMIT)
    except subprocess.TimeoutExpired:
        tests.send_signal(signal.SIGINT)  # it removes its containers
        tests.wait()
        raise NoEngine(f"the tests were not through within {LIMIT} s") from None


def images(address: str) -> dict[str, str]:
    """The variables that name the images: made here, where none are given, and seen to run."""
    variables: dict[str, str] = {}
    with contextlib.closing(docker.DockerClient(address, timeout=60)) as client:
        try:
            for variable, make in MADE.items():
                if variable not in os.environ:
                    # Ryuk removes what a killed run left. It is an image of its own, which must be pulled.
                    variables |= {variable: make(client), "TESTCONTAINERS_RYUK_DISABLED": "true"}
            if POSTGRES in variables:
                client.containers.run(variables[POSTGRES], ["-c", ":"], entrypoint="/bin/sh", remove=True)
        except DockerException as error:
            raise NoEngine(f"the engine that answers runs no container: {error}") from error
    return variables


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
