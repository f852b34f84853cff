"""Runs tests against servers in containers, where an engine can be had; says what was run, or why not.

    python3 run.py sh python tests/containers [arguments for pytest]

The images are `SINKFENCE_TEST_POSTGRES_IMAGE` and `SINKFENCE_TEST_S3_IMAGE`, pulled if need be; where they
aren't given, images are made of the wheels.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import docker
from engine import NoEngine, engine
from images import postgres_image, s3_image

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/servers/test_selection.py",
    "tests/contract/test_real_stores.py",
    "tests/postgres/test_sink.py",
    "tests/s3/test_s3_fence.py",
)
MADE = {"SINKFENCE_TEST_POSTGRES_IMAGE": postgres_image, "SINKFENCE_TEST_S3_IMAGE": s3_image}


def main(arguments: list[str]) -> int:
    """Return pytest's exit code, or 0 where nothing could be run."""
    try:
        with engine() as address:
            return run(address, arguments)
    except NoEngine as why:
        print(f"containers: NOT RUN: {why}")
        return 0


def run(address: str, arguments: list[str]) -> int:
    """Run the tests with an engine."""
    # Ryuk removes what a killed run left. It is an image of its own, which must be pulled.
    variables = os.environ | {"DOCKER_HOST": address, "SINKFENCE_TEST_PULL": "1"}
    with contextlib.closing(docker.DockerClient(address, timeout=300)) as client:
        for variable, make in MADE.items():
            if variable not in os.environ:
                variables[variable] = make(client)
                variables["TESTCONTAINERS_RYUK_DISABLED"] = "true"
    command = [sys.executable, "-m", "pytest", "--backend", "testcontainers", *(arguments or TESTS)]
    code = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
    print(f"containers: run, pytest's exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
