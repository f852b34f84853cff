#!/usr/bin/env python3
"""usage: python3 run.py VERB [arguments, which are handed on]

  demo    play the worked example: two workers, three destinations that refuse the stale one
  test    run the tests (pytest)
  lint    check style, types and import contracts
  bench   run the benchmarks, all or by name, and show a table of them
  docs    build the documentation into docs/_build/html
  dist    build what is published into dist: source distribution, wheel, bill of materials
  sh      open a shell in the environment, or run a command there

Needs Python and a package registry: it makes `.venv` beside itself, and installs there what the verb needs.
"""

# The standard library alone, and a syntax that old Pythons can read: they are to say that they are too old.
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

FLOOR = (3, 11)

# The extra of pyproject.toml that a verb needs, and the extras that include an extra.
EXTRAS = {
    "demo": "demo",
    "test": "test",
    "lint": "lint",
    "docs": "docs",
    "bench": "bench",
    "dist": "test",
    "sh": "test",
}
INCLUDED_IN = {
    "demo": "demo test lint bench",
    "test": "test lint bench",
    "lint": "lint",
    "docs": "docs test lint bench",
    "bench": "bench",
}

CHECKS = ["ruff check .", "ruff format --check .", "mypy", "pyright", "lint-imports"]
SIDE_BY_SIDE = [
    "-n",
    "3",
    "--dist",
    "worksteal",
]  # all tests mostly wait: in three processes they wait together
BUILDS = ["python -m hatchling build -d dist", "python tests/packaging/sbom.py dist"]

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
MADE_FOR = "%s, Python %d.%d" % ((ROOT,) + sys.version_info[:2])
STATE = os.path.join(VENV, "run.py.json")  # that it is there says that this script has made the environment


class Stop(Exception):
    """There is no going on: one line that says what to do."""


def main(arguments):
    """Run a verb and return its exit code."""
    if sys.version_info < FLOOR:
        return with_newer_python(arguments)
    if not arguments or arguments[0] not in EXTRAS:
        (sys.stdout if "--help" in arguments else sys.stderr).write(__doc__)
        return 0 if "--help" in arguments else 2
    with locked():
        prepare(EXTRAS[arguments[0]])
    return run(arguments[0], arguments[1:])


def with_newer_python(arguments):
    """Start again with a Python from the PATH that is new enough, or say that there is none."""
    for minor in range(15, FLOOR[1] - 1, -1):
        python = "python3.%d" % minor
        if works([python, "-c", ""]):  # a shim of that name may have no Python behind it
            return subprocess.call([python, os.path.join(ROOT, "run.py")] + arguments)
    ours, wanted = "%d.%d" % sys.version_info[:2], "%d.%d" % FLOOR
    raise Stop("Python %s is too old: sinkfence needs %s or later, and none is on the PATH" % (ours, wanted))


def works(command):
    """Whether a command can be run, and ends well."""
    with open(os.devnull, "w") as nowhere:
        try:
            return subprocess.call(command, stdout=nowhere, stderr=nowhere, close_fds=False) == 0
        except OSError:
            return False


@contextlib.contextmanager
def locked():
    """One run.py at a time prepares the environment.

    The lock is on this folder, and pip inherits it: where run.py is killed and pip writes on, the next waits.
    """
    import fcntl

    folder = os.open(ROOT, os.O_RDONLY)
    os.set_inheritable(folder, True)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another run.py, which prepares the environment")
        fcntl.flock(folder, fcntl.LOCK_EX)
    yield
    os.close(folder)  # an error ends this process, and closes it too


def prepare(extra):
    """See to it that the environment is there, with an extra's packages."""
    wanted = hashlib.sha256((read("pyproject.toml") + read("requirements.lock")).encode()).hexdigest()
    state = usable_state() or make_environment()
    if any(state["installed"].get(name) == wanted for name in INCLUDED_IN[extra].split()):
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


def read(name):
    """Return the text of a file of the checkout."""
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def usable_state():
    """Return what is known of the environment, or None where there is none of use: then it is removed."""
    if not os.path.lexists(VENV) or not os.listdir(VENV):
        return None
    if not os.path.exists(STATE):
        raise Stop(".venv was not made by run.py: move it away or remove it, and try again")
    with contextlib.suppress(ValueError):
        state = json.loads(read(STATE))
        if state.get("whole") and state["made for"] == MADE_FOR and os.path.exists(PYTHON):
            return state
    say("making the environment anew: it is unfinished, or of another place or Python")
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
    state = {"made for": MADE_FOR, "whole": False, "installed": {}}
    os.makedirs(VENV, exist_ok=True)
    write_state(state)
    venv.create(VENV, symlinks=True)
    # Debian keeps this in a package of its own, python3-venv: without it a pip from outside must do.
    works([PYTHON, "-I", "-m", "ensurepip"])
    return state


def pip_command():
    """Return the command that installs into the environment."""
    # Python compiles what is imported: to compile all of it now would take half a minute.
    options = ["install", "--disable-pip-version-check", "--no-input", "--no-compile"]
    if works([PYTHON, "-c", "import pip"]):
        return [PYTHON, "-m", "pip"] + options
    if works([sys.executable, "-m", "pip", "--python", PYTHON, "--version"]):
        return [sys.executable, "-m", "pip", "--python", PYTHON] + options
    if works(["uv", "--version"]):
        return ["uv", "pip", "install", "--python", PYTHON]
    raise Stop("this Python has no pip: install python3-venv or python3-pip (Debian, Ubuntu), or uv")


def install(extra):
    """Install this checkout, editable, with an extra's packages, and show that something happens."""
    say("installing what %r needs (once; 1 to 6 minutes, up to 2 GB)" % extra)
    started, said = time.time(), []
    with subprocess.Popen(
        pip_command() + ["-e", ".[%s]" % extra, "-c", pins()],
        cwd=ROOT,
        env=dict(environment(), PIP_USER="0", PIP_PROGRESS_BAR="off", PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=False,  # for the lock; Python opens nothing else that would be inherited
        errors="replace",
    ) as pip:
        reader = threading.Thread(target=listen, args=(pip.stdout, said), daemon=True)
        reader.start()
        while reader.join(5) or reader.is_alive():
            steps = [line.strip()[:90] for line in said if line.lstrip()[:4] in ("Coll", "Down", "Inst")]
            say("%3d s: %s" % (time.time() - started, steps[-1] if steps else "..."))
    if pip.returncode != 0:
        sys.stderr.writelines("    %s\n" % line.rstrip()[:200] for line in said[-6:])
        if "No space left" in "".join(said):
            raise Stop("the disk is full: free some space (about 2 GB) and try again")
        if re.search("ConnectionError|ConnectTimeout|Max retries|from versions: none", "".join(said)):
            raise Stop("the package registry is out of reach: see to the network, or set PIP_INDEX_URL")
        raise Stop("the packages could not be installed: what pip said last is above")
    say("installed in %d s" % (time.time() - started))


def listen(output, said):
    """Keep the lines that are read; Ctrl-C may come at any moment, and then closes what is read here."""
    with contextlib.suppress(ValueError):
        said.extend(output)


def pins():
    """Write the versions of requirements.lock, and return where. With hashes pip would take no checkout."""
    lines = re.findall(r"^([^# \n].*==.*?)[ \\]*$", read("requirements.lock"), re.MULTILINE)
    with open(os.path.join(VENV, "pins.txt"), "w") as file:
        file.write("\n".join(lines) + "\n")
    return file.name


def environment():
    """Return the variables to run programs of the environment with."""
    variables = dict(os.environ, VIRTUAL_ENV=VENV)
    variables["PATH"] = os.path.dirname(PYTHON) + os.pathsep + variables.get("PATH", os.defpath)
    variables["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"  # or it asks a registry for a newer version of itself
    if not variables.get("HOME"):
        variables.pop("HOME", None)  # an empty one would put caches into the root folder
    return {name: variables[name] for name in variables if name not in ("PYTHONHOME", "PYTHONPATH")}


def run(verb, arguments):
    """Run the verb, in place of this process: so signals and the exit code are the command's own."""
    variables = environment()
    os.chdir(ROOT)
    if verb == "lint":
        failed = [check for check, code in side_by_side(CHECKS, variables) if code != 0]
        say("failed: " + ", ".join(failed) if failed else "every check has passed")
        return 1 if failed else 0
    if verb == "dist":
        return int(any(subprocess.call(build.split(), env=variables) != 0 for build in BUILDS))
    command = {
        "demo": [PYTHON, os.path.join(VENV, "bin", "sinkfence"), "demo"],
        "test": [PYTHON, "-m", "pytest"] + ([] if arguments else SIDE_BY_SIDE),
        "bench": [PYTHON, os.path.join("tests", "bench")],
        "docs": [PYTHON, "-m", "sphinx", "-Wn", "--keep-going", "docs", "docs/_build/html"],
        "sh": [] if arguments else [variables.get("SHELL", "/bin/sh")],
    }[verb] + arguments
    if not shutil.which(command[0], path=variables["PATH"]):
        raise Stop("there is no command %r" % command[0])
    return os.execvpe(command[0], command, variables)


def side_by_side(commands, variables):
    """Run commands at once, and yield each with its exit code; what they say is shown one after the other."""
    running = [
        (
            command,
            subprocess.Popen(
                command.split(), env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ),
        )
        for command in commands
    ]
    for command, process in running:
        said = process.communicate()[0]
        sys.stdout.write("$ %s\n%s" % (command, said.decode("utf-8", "replace")))
        sys.stdout.flush()
        yield command, process.returncode


def say(text):
    """Tell the user what is going on."""
    sys.stderr.write("run.py: %s\n" % text)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Stop as stop:
        say(stop)
    except OSError as error:
        say("%s: %s must be writable, with about 2 GB free (%s)" % (error.strerror, ROOT, error.filename))
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    sys.exit(1)
