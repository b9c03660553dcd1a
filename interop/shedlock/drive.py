"""ShedLock's JdbcTemplateLockProvider and lockkeeper with layout=shedlock on the same table: by the
JVM's clock and by the server's, exclusion, lockAtLeastFor, leases, and both in one crowd."""

import json
import os
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager

from background import in_background
from harness import HOLD, Holder, attempt, case, done, soon_mostly
from java import Java
from postgres import Postgres

LOCKKEEPER = os.path.join(os.path.dirname(os.path.dirname(HOLD)), "lockkeeper")
LEASE = 20
# A lease that is short enough to see its end.
SHORT = 2
# A waiter of lockkeeper's looks once in a second and a quarter at least, the peer every 20 ms.
POLL = 1.75
ZONE = "-Duser.timezone=Europe/Berlin"


def seconds(most, least=0):
    return str(1000 * most), str(1000 * least)


@contextmanager
def peer(server, clock, host, *words):
    java = Java(*words, "Peer", server.jdbc(), clock, host)
    try:
        yield java
    finally:
        java.process.kill()
        java.process.wait()


def excludes(clock, java, url):
    for name in ["a", "with space", "it's \"quoted\"", "é" * 64, "a/b:c"]:
        for _ in range(2):
            assert java.ask("try", name, *seconds(LEASE)) == "true"
            assert attempt(url, name) == 75, f"lockkeeper must see ShedLock's lock on {name}"
            java.ask("unlock", name)
            ours = Holder(url, name).wait_granted()
            assert java.ask("try", name, *seconds(LEASE)) == "false", f"our lock on {name}"
            ours.release()
    case(f"{clock}: each excludes the other, whatever the name, also where it is new")


def passes(clock, java, url):
    def comes_after_it():
        assert java.ask("try", "pass", *seconds(LEASE)) == "true"
        ours = Holder(url, "pass")
        granted = in_background(ours)
        assert ours.granted_at is None
        released = time.monotonic()
        java.ask("unlock", "pass")
        granted.join()
        ours.release()
        return ours.granted_at - released

    def comes_after_us():
        ours = Holder(url, "pass").wait_granted()
        java.tell("lock", "pass", seconds(LEASE)[0])
        time.sleep(0.5)
        assert not java.has_said_something(), "ShedLock has what we hold"
        released = time.time()
        ours.release()
        assert java.hear() == "true"
        at = java.at
        java.ask("unlock", "pass")
        return at - released

    soon_mostly("after ShedLock's release", [comes_after_it() for _ in range(3)], POLL)
    soon_mostly("ShedLock after our release", [comes_after_us() for _ in range(3)], POLL)
    case(f"{clock}: who waits has it after the other's release")


def at_least(clock, java, url):
    """lockAtLeastFor, and --hold-at-least of `lockkeeper run`."""
    began = time.monotonic()
    assert java.ask("try", "least", *seconds(LEASE, 3)) == "true"
    java.ask("unlock", "least")
    assert attempt(url, "least") == 75, "its work is done, and its time is not over"
    ours = Holder(url, "least").wait_granted()
    took = ours.granted_at - began
    assert 2.9 < took < 3 + POLL + 1, f"{took:.1f} s, for 3 s"
    ours.release()
    words = [LOCKKEEPER, "--url", url, "run", "least", "--hold-at-least", "3", "--", "true"]
    began = time.monotonic()
    run = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    while java.ask("try", "least", *seconds(LEASE)) == "true":
        java.ask("unlock", "least")
        assert time.monotonic() < began + 10, "it never had the lock"
    assert java.ask("lock", "least", seconds(LEASE)[0]) == "true"
    took = time.monotonic() - began
    assert took > 3, f"{took:.1f} s, for at least 3 s"
    assert run.wait(20) == 0
    java.ask("unlock", "least")
    case(f"{clock}: lockAtLeastFor and --hold-at-least keep the other out")


def renews(clock, java, short):
    """For one and a half leases, by whoever holds."""
    assert java.ask("try", "theirs", *seconds(SHORT)) == "true"
    ours = Holder(short, "ours").wait_granted()
    end = time.monotonic() + 1.5 * SHORT
    while time.monotonic() < end:
        time.sleep(SHORT / 5)
        assert java.ask("extend", "theirs", seconds(SHORT)[0]) == "true"
    assert attempt(short, "theirs") == 75, "ShedLock has extended it"
    assert java.ask("try", "ours", *seconds(SHORT)) == "false", "ours was renewed"
    java.ask("unlock", "theirs")
    ours.release()
    case(f"{clock}: both keep their locks beyond a lease")


def ends(clock, java, short):
    """The lease of a holder that says nothing more."""
    began = time.monotonic()
    assert java.ask("try", "dead", *seconds(SHORT)) == "true"
    ours = Holder(short, "dead").wait_granted()
    took = ours.granted_at - began
    assert SHORT * 0.9 < took < SHORT + 2, f"{took:.1f} s, for a lease of {SHORT} s"
    java.ask("unlock", "dead")
    assert java.ask("try", "dead", *seconds(SHORT)) == "false", "it freed what was not its own"
    ours.process.kill()
    ours.process.wait()
    began = time.monotonic()
    assert java.ask("lock", "dead", seconds(LEASE)[0]) == "true"
    took = time.monotonic() - began
    assert took < SHORT + 2, f"{took:.1f} s, for a lease of {SHORT} s"
    java.ask("unlock", "dead")
    case(f"{clock}: a dead holder's lock passes on when its time is over, to either side")


def sells(javas, url, server):
    """Two processes of each side sell from one stock under the lock."""
    stock, orders, ours_sold = 40, 15, []
    with tempfile.TemporaryDirectory() as place:
        file = os.path.join(place, "stock")
        with open(file, "w") as out:
            out.write(str(stock))

        def sell():
            sold = 0
            for _ in range(orders):
                ours = Holder(url, "stock").wait_granted()
                with open(file) as left:
                    left = int(left.read())
                time.sleep(0.002)
                if left > 0:
                    with open(file, "w") as out:
                        out.write(str(left - 1))
                    sold += 1
                ours.release()
            ours_sold.append(sold)

        threads = [threading.Thread(target=sell) for _ in javas]
        for java in javas:
            java.tell("sell", "stock", file, str(orders))
        for thread in threads:
            thread.start()
        theirs = sum(int(java.hear()) for java in javas)
        for thread in threads:
            thread.join()
        with open(file) as left:
            assert left.read() == "0"
    ours = sum(ours_sold)
    assert len(ours_sold) == len(javas) and ours + theirs == stock, f"{ours} + {theirs} sold"
    assert ours > 0 and theirs > 0
    print(f"  sold by ShedLock: {theirs}, by lockkeeper: {ours}")
    held = "SELECT count(*) FROM shedlock WHERE lock_until > timezone('utc', clock_timestamp())"
    assert server.sql(held) == "0", "nothing is left"
    case(f"{stock} on stock, and no more sold, with two processes of each side, one by each clock")


def warnings(url):
    done = subprocess.run([LOCKKEEPER, "doctor", "--json", url], capture_output=True, text=True)
    return {warning["id"] for warning in json.loads(done.stdout.splitlines()[0])["warnings"]}


with Postgres() as server, ExitStack() as stack:
    server.sql("CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, "
        "locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))")
    url, short = (server.url(f"layout=shedlock&create=false&ttl={ttl}s") for ttl in (LEASE, SHORT))

    def all_of(clock, java):
        excludes(clock, java, url)
        passes(clock, java, url)
        at_least(clock, java, url)
        renews(clock, java, short)
        ends(clock, java, short)

    # The session's zone is the JVM's.
    by_db = stack.enter_context(peer(server, "db", "db-host", ZONE))
    all_of("usingDbTime", by_db)
    assert not warnings(url)
    utc = stack.enter_context(peer(server, "utc", "utc-host", ZONE))
    all_of("the JVM's clock", utc)
    sells([by_db, utc], url, server)
    found = warnings(url)
    assert "shedlock-jvm-clock" in found and "shedlock-clock" not in found, found
    berlin = stack.enter_context(peer(server, "jvm", "berlin", ZONE))
    assert berlin.ask("try", "zone", *seconds(LEASE)) == "true"
    assert {"shedlock-jvm-clock", "shedlock-clock"} <= warnings(url)
    berlin.ask("unlock", "zone")
    case("doctor tells by which clock others lock, and that one is in another zone")
    done()
