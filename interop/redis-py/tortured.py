"""redis-py's Lock under `lockkeeper torture`, behind the adapter beside this file: convicted of
what it is known for, and of nothing where nothing happens."""

import json
import os
import shlex
import subprocess
import sys
import tempfile

from harness import case, done

LOCKKEEPER = os.path.join(os.path.dirname(os.path.dirname(os.environ["HOLD"])), "lockkeeper")
ADAPTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torture.py")


def torture(faults, seconds, seed):
    """The exit code, the classes of violations, and what was said."""
    client = "exec:" + shlex.join([sys.executable, ADAPTER])
    words = [LOCKKEEPER, "torture", "redis:auto", "--client", client, "--faults", faults,
        "--seconds", str(seconds), "--seed", str(seed), "--json"]
    with tempfile.TemporaryDirectory() as place:
        told = {**os.environ, "TMPDIR": place}
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=120, env=told)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert lines, f"no verdict: {ended.stderr}"
    return ended.returncode, {found["class"] for found in lines[-1]["violations"]}, ended.stderr


code, violations, told = torture("none", 5, 1)
assert (code, violations) == (0, set()), f"{code} {violations} {told}"
case("where nothing happens nobody is convicted")
# Its lease has to end between a check and the write after it: that takes a stop at the right
# moment, and may take a few runs.
for seed in range(1, 5):
    code, violations, told = torture("stop-client", 30, seed)
    assert violations <= {"late-effect", "lost-update"} and code == (1 if violations
        else 0), f"{code} {violations} {told}"
    if violations:
        break
assert violations, "no holder that was stopped wrote late"
case(
    "a holder that was stopped writes late, and no token refuses it: "
    + ", ".join(sorted(violations))
)
done()
