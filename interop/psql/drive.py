"""pg_advisory_lock by psql, and lockkeeper with layout=session, in one line of the server."""

import signal
import subprocess

from background import in_background
from harness import Holder, Program, attempt, case, done, wait
from postgres import BIN, USER, Postgres

# For how long a server that has just started grants none, and a connection that is gone stays.
SESSION = "session_timeout=2s"
# The name of a lock, and what psql calls it.
NAMES = {
    "42": "42",
    "-9223372036854775808": "-9223372036854775808",
    "4,2": "4, 2",
    "a'b \U0001f511": "hashtextextended('a''b \U0001f511', 0)",
}


class Psql(Program):
    """A session of psql that has as many lines to say as it was told statements."""

    def __init__(self, server):
        super().__init__([f"{BIN}/psql", "-XqAt", "-h", server.dir, "-p", str(server.port), "-U",
            USER, "-d", "postgres"], cwd="/", stderr=subprocess.DEVNULL)

    def says(self, sql):
        self.tell(f"{sql};")
        return self.hear()

    def locks(self, key, shared=""):
        """Waits for it; the lock itself answers nothing."""
        return self.says(f"SELECT pg_advisory_lock{shared}({key})") == ""

    def tries(self, key, shared=""):
        return self.says(f"SELECT pg_try_advisory_lock{shared}({key})") == "t"

    def unlocks(self, key, shared=""):
        return self.says(f"SELECT pg_advisory_unlock{shared}({key})") == "t"


def waiting(server):
    return int(server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' "
        "AND NOT granted"))


def excludes_both_ways(server, url, theirs, name, key):
    assert theirs.tries(key)
    assert attempt(url, name) == 75, "lockkeeper must see it"
    ours = Holder(url, name)
    granted = in_background(ours)
    wait("ours stands in the server's line", lambda: waiting(server) == 1)
    assert ours.granted_at is None, "two holders"
    assert theirs.unlocks(key)
    granted.join()
    assert not theirs.tries(key), "psql must see ours"
    assert not theirs.unlocks(key), "it must not free ours"
    ours.release()
    wait("it is free", lambda: theirs.tries(key))
    assert theirs.unlocks(key)


def stands_in_one_line(server, url, theirs):
    """Theirs holds; ours, theirs and ours come, and get it in this order."""
    second = Psql(server)
    assert theirs.tries(42)
    first = Holder(url, "42")
    first_granted = in_background(first)
    wait("one waits", lambda: waiting(server) == 1)
    second.tell("SELECT pg_advisory_lock(42);")
    wait("two wait", lambda: waiting(server) == 2)
    third = Holder(url, "42")
    third_granted = in_background(third)
    wait("three wait", lambda: waiting(server) == 3)
    assert attempt(url, "42") == 75 and not Psql(server).tries(42), "no try overtakes"
    assert theirs.unlocks(42)
    first_granted.join()
    assert not second.has_said_something() and third.granted_at is None
    first.release()
    assert second.hear() == "" and third.granted_at is None
    assert second.unlocks(42)
    third_granted.join()
    third.release()
    second.end()


def reads_together(server, url, theirs):
    ours = Holder(url, "42", "-s").wait_granted()
    assert theirs.tries(42, "_shared"), "both read"
    assert attempt(url, "42") == 75 and not Psql(server).tries(42)
    writer = Holder(url, "42")
    granted = in_background(writer)
    wait("a writer waits", lambda: waiting(server) == 1)
    assert theirs.unlocks(42, "_shared")
    assert writer.granted_at is None, "ours still reads"
    ours.release()
    granted.join()
    writer.release()


def is_free_when_its_holder_dies(server, url, theirs):
    ours = Holder(url, "42").wait_granted()
    theirs.tell("SELECT pg_advisory_lock(42);")
    wait("theirs waits", lambda: waiting(server) == 1)
    ours.process.kill()
    ours.process.wait()
    assert theirs.hear() == ""
    next_one = Holder(url, "42")
    granted = in_background(next_one)
    wait("ours waits", lambda: waiting(server) == 1)
    theirs.process.send_signal(signal.SIGKILL)
    theirs.process.wait()
    granted.join()
    next_one.release()


with Postgres() as server:
    url = server.url(f"layout=session&names=hash&{SESSION}")
    theirs = Psql(server)
    assert theirs.says("SELECT 1") == "1"
    for name, key in NAMES.items():
        excludes_both_ways(server, url, theirs, name, key)
        case(f"{name} is {key} in psql: each excludes the other")
    stands_in_one_line(server, url, theirs)
    case("ours and psql's stand in one line, and are granted in the order in which they came")
    reads_together(server, url, theirs)
    case("both read together, and a writer waits for both")
    is_free_when_its_holder_dies(server, url, theirs)
    case("a killed holder of either side frees the lock for the other")
    done()
