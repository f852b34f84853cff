#!/usr/bin/env python3
"""What a developer runs, on a machine that has Python and a package registry: `python3 run.py test`.

It makes `.venv` beside itself, installs there what the verb needs whenever pyproject.toml has changed, and
runs the verb. It uses the standard library alone, and a syntax that old Pythons can read: they are to say
that they are too old.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time

FLOOR = (3, 11)
NEWEST = 15  # how far python3.N is looked for on the PATH

USAGE = """usage: python3 run.py VERB [arguments, which are handed on]

  demo    play the worked example: two workers, three destinations that refuse the stale one
  test    run the tests (pytest)
  lint    check style, types and import contracts
  docs    build the documentation into docs/_build/html
  sh      open a shell in the environment, or run a command there
"""

# The extra of pyproject.toml that a verb needs, and the extras that include an extra.
EXTRAS = {"demo": "demo", "test": "test", "lint": "lint", "docs": "docs", "sh": "test"}
INCLUDED_IN = {
    "demo": ["demo", "test", "lint"],
    "test": ["test", "lint"],
    "lint": ["lint"],
    "docs": ["docs", "test", "lint"],
}

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STATE = os.path.join(VENV, "run.py.json")  # that it is there says that this script has made the environment


class Stop(Exception):
    """There is no going on: one line that says what to do."""


def main(arguments):
    """Run a verb and return its exit code."""
    if sys.version_info < FLOOR:
        return with_newer_python(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    if verb not in EXTRAS:
        sys.stderr.write("run.py: there is no verb %r\n\n%s" % (verb, USAGE))
        return 2
    with Lock():
        prepare(EXTRAS[verb])
    return run(verb, rest)


def with_newer_python(arguments):
    """Start again with a Python from the PATH that is new enough, or say that there is none."""
    for minor in range(NEWEST, FLOOR[1] - 1, -1):
        python = "python3.%d" % minor
        try:  # a shim of that name may have no Python behind it
            found = subprocess.call([python, "-c", ""], stderr=subprocess.PIPE) == 0
        except OSError:
            found = False
        if found:
            return subprocess.call([python, os.path.join(ROOT, "run.py")] + arguments)
    ours = "%d.%d" % sys.version_info[:2]
    raise Stop(
        "Python %s is too old: sinkfence needs %d.%d or later, and none is on the PATH" % ((ours,) + FLOOR)
    )


class Lock:
    """One run.py at a time prepares the environment. The lock is on this folder and goes with its process."""

    def __enter__(self):
        import fcntl

        self.folder = os.open(ROOT, os.O_RDONLY)
        try:
            fcntl.flock(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run.py, which prepares the environment")
            fcntl.flock(self.folder, fcntl.LOCK_EX)

    def __exit__(self, *error):
        os.close(self.folder)


def prepare(extra):
    """See to it that the environment is there, with an extra's packages."""
    wanted = fingerprint()
    state = usable_state() or make_environment()
    if any(state["installed"].get(name) == wanted for name in INCLUDED_IN[extra]):
        return
    # Written before and taken back after: where pip was killed half-way through a package, the next pip would
    # take the package for installed.
    write_state(dict(state, whole=False))
    try:
        install(extra)
    except Stop:
        with contextlib.suppress(OSError):  # a full disk has been told of
            write_state(state)  # pip has ended by itself, and left what was there
        raise
    state["installed"][extra] = wanted
    write_state(dict(state, whole=True))


def fingerprint():
    """Return a hash of what an installation depends on."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "requirements.lock"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def usable_state():
    """Return what is known of the environment, or None where there is none of use: then it is removed."""
    if not os.path.lexists(VENV) or not os.listdir(VENV):
        return None
    if not os.path.exists(STATE):
        raise Stop(".venv was not made by run.py: move it away or remove it, and try again")
    try:
        with open(STATE) as file:
            state = json.load(file)
    except ValueError:
        state = {}
    python = "%d.%d" % sys.version_info[:2]
    if not state.get("whole"):
        why = "is unfinished"
    elif state["root"] != ROOT or not os.path.exists(PYTHON):
        why = "was made for another place"
    elif state["python"] != python:
        why = "is for Python %s, and this is %s" % (state["python"], python)
    else:
        return state
    say("the environment %s: making it anew" % why)
    shutil.rmtree(VENV)
    return None


def write_state(state):
    """Write what is known of the environment, in one step."""
    with open(STATE + ".new", "w") as file:
        json.dump(state, file)
    os.replace(STATE + ".new", STATE)


def make_environment():
    """Make an environment without packages, and return what is known of it."""
    import venv

    say("making .venv with Python %d.%d.%d" % sys.version_info[:3])
    state = {"root": ROOT, "python": "%d.%d" % sys.version_info[:2], "whole": False, "installed": {}}
    os.makedirs(VENV, exist_ok=True)
    write_state(state)
    try:
        # Debian keeps ensurepip in a package of its own, python3-venv: without it a pip from outside must do.
        venv.create(VENV, symlinks=True, with_pip=has("ensurepip"))
    except subprocess.CalledProcessError:
        raise Stop("pip could not be put into .venv: is the disk full? (ensurepip has failed)")
    return state


def has(module):
    """Whether this Python has a module."""
    import importlib.util

    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # an empty folder is no module


def pip_command():
    """Return the command that installs into the environment."""
    options = ["install", "--disable-pip-version-check", "--no-input"]
    if subprocess.call([PYTHON, "-c", "import pip"], stderr=subprocess.PIPE) == 0:
        return [PYTHON, "-m", "pip"] + options
    if has("pip"):
        return [sys.executable, "-m", "pip", "--python", PYTHON] + options
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", PYTHON]
    raise Stop("this Python has no pip: install python3-venv or python3-pip (Debian, Ubuntu), or uv")


def install(extra):
    """Install this checkout, editable, with an extra's packages, and show that something happens."""
    say("installing what %r needs (once; a minute or so)" % extra)
    started = time.time()
    pip = subprocess.Popen(
        pip_command() + ["-e", ".[%s]" % extra, "-c", pins()],
        cwd=ROOT,
        env=dict(clean_environment(), PIP_USER="0", PIP_PROGRESS_BAR="off", PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
    )
    said = []
    reader = threading.Thread(target=lambda: said.extend(pip.stdout), daemon=True)
    reader.start()
    reader.join(5)
    while reader.is_alive():
        steps = [line.strip() for line in said if line.lstrip().startswith(("Coll", "Down", "Inst", "Prep"))]
        say("%3d s: %s" % (time.time() - started, steps[-1][:90] if steps else "..."))
        reader.join(5)
    if pip.wait() != 0:
        sys.stderr.writelines("    %s\n" % line.rstrip()[:200] for line in said[-6:])
        raise Stop(why_not_installed("".join(said)))
    say("installed in %d s" % (time.time() - started))


def pins():
    """Write the versions of requirements.lock, and return where.

    Without the hashes: with those pip would refuse a checkout, which has none.
    """
    with open(os.path.join(ROOT, "requirements.lock")) as file:
        lines = [line.rstrip("\\ \n") for line in file if "==" in line and not line.startswith(("#", " "))]
    path = os.path.join(VENV, "pins.txt")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    return path


def why_not_installed(said):
    """Return one line on why pip has failed, by what it said."""
    if "No space left" in said:
        return "the disk is full: free some space (about 1 GB) and try again"
    if any(
        word in said for word in ("ConnectionError", "ConnectTimeout", "Max retries", "from versions: none")
    ):
        return "the package registry cannot be reached: see to the network, or set PIP_INDEX_URL to a mirror"
    return "the packages could not be installed: what pip said last is above"


def clean_environment():
    """Return the environment variables, without those that would lead Python or pip astray."""
    environment = dict(os.environ)
    for name in ("PYTHONHOME", "PYTHONPATH"):
        environment.pop(name, None)
    if not environment.get("HOME"):
        environment.pop("HOME", None)  # an empty one would put caches into the root folder
    return environment


def run(verb, arguments):
    """Run the verb in the environment, in place of this process, or return an exit code."""
    environment = clean_environment()
    environment["VIRTUAL_ENV"] = VENV
    environment["PATH"] = os.path.dirname(PYTHON) + os.pathsep + environment.get("PATH", os.defpath)
    os.chdir(ROOT)
    if verb == "lint":
        return lint(environment, arguments)
    command = {
        "demo": [PYTHON, os.path.join(VENV, "bin", "sinkfence"), "demo"],
        "test": [PYTHON, "-m", "pytest"],
        "docs": [PYTHON, "-m", "sphinx", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html"],
        "sh": [] if arguments else [environment.get("SHELL", "/bin/sh")],
    }[verb] + arguments
    sys.stdout.flush()
    # In place of this process, so that signals and the exit code are the command's own.
    return os.execvpe(command[0], command, environment)


def lint(environment, only):
    """Run every check, or those that are named; return 1 if one has failed."""
    # Or it would ask a registry for a newer version of itself.
    environment["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"
    failed = []
    for check in ("ruff check .", "ruff format --check .", "mypy", "pyright", "lint-imports"):
        if only and check.split()[0] not in only:
            continue
        say(check)
        if subprocess.call(check.split(), env=environment) != 0:
            failed.append(check)
    if failed:
        raise Stop("failed: " + ", ".join(failed))
    return 0


def say(text):
    """Tell the user what is going on."""
    sys.stderr.write("run.py: %s\n" % text)
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Stop as stop:
        say(stop)
    except OSError as error:
        say("%s: %s must be writable, with about 1 GB free (%s)" % (error.strerror, ROOT, error.filename))
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    sys.exit(1)
