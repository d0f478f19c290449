"""What a program took, as the system tells it. Linux and macOS."""

import json
import subprocess
import sys
import time
from typing import NamedTuple

# The peak of a child counts from that of whoever starts it, so this is a Python that has imported next to nothing. What the
# program prints goes to standard error.
STARTER = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, usage = os.wait4(pid, 0)
print([os.waitstatus_to_exitcode(status), usage.ru_utime, usage.ru_stime, usage.ru_maxrss])
"""


class Measured(NamedTuple):
    """Exit code, wall seconds, processor seconds of the program and of the system for it, peak in MiB, what it told."""

    code: int
    wall: float
    user: float
    system: float
    peak: float
    told: str


def run(command, folder=None):
    """Runs a program to its end."""
    started = time.perf_counter()
    starter = [sys.executable, "-S", "-c", STARTER, *map(str, command)]
    child = subprocess.run(starter, cwd=folder, capture_output=True, text=True, check=True)
    code, user, system, peak = json.loads(child.stdout)
    unit = 1 if sys.platform == "darwin" else 1024
    return Measured(code, time.perf_counter() - started, user, system, peak * unit / 2**20, child.stderr)
