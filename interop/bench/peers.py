"""Peers on the same work, in turn with lockkeeper in short windows: `figures ROUNDS [KIND …]`, or
`brief`, which only sees that every driver still works.

A driver is a folder beside this file. `kinds` in it says on what it can be measured, one a line.
`run build` builds it; `run KIND HOST:PORT …` starts a process that stays. It says `ready`, its
version and its settings, with tabs between. To `turn`, MILLISECONDS and NAME … it answers, after
that time, one word for each time that it has had a lock: how long it waited for the lock, and how
long lock and unlock took together, in nanoseconds, as WAIT/WHOLE. Each NAME has a caller of its
own: the same name many times is a crowd inside one process. More than one are said only on the
kinds that have such rows here."""

import os
import statistics
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from harness import Program, Server, wait
from postgres import Postgres
from zookeeper import ZooKeeper

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = "lockkeeper"
# A member counts for lockkeeper once it has been up for longer than this, in seconds; and advisory
# locks are granted then.
YOUNG = 2


class Row(NamedTuple):
    """Work: that many processes, each with these callers."""

    label: str
    processes: int
    callers: int = 1
    # Each caller has a name of its own.
    apart: bool = False

    def names(self, library):
        which = range(self.callers) if self.apart else [0] * self.callers
        return [f"bench-{library}-{self.processes}-{self.callers}-{one}" for one in which]

    @property
    def contended(self):
        return self.processes > 1 or self.callers > 1 and not self.apart


FREE = Row("free lock", 1)
ALONE = [FREE]
CROWDS = [FREE, Row("many names, 64 callers", 1, 64, True), Row("one lock, 8 callers", 1, 8)]


class Redlock:
    """Five servers that know nothing of each other."""

    kind = "redlock"
    rows, processes = ALONE, 8
    # Ours and theirs, where it is not our usual that is compared.
    beside = []

    def __enter__(self):
        with ExitStack() as stack:
            self.servers = [stack.enter_context(Server()) for _ in range(5)]
            self.stack = stack.pop_all()
        wait("the members count", lambda: all(uptime(server) > YOUNG for server in self.servers))
        return self

    def __exit__(self, *_):
        self.stack.close()

    @property
    def hosts(self):
        return [f"127.0.0.1:{server.port}" for server in self.servers]

    @property
    def version(self):
        return f"five Redis {info(self.servers[0])['redis_version']}"


def info(server):
    return dict(line.split(":", 1) for line in server.cli("INFO", "server").split() if ":" in line)


def uptime(server):
    return int(info(server)["uptime_in_seconds"])


class Redis(Server):
    """One server."""

    kind = "redis"
    rows, processes = CROWDS, 4
    beside = [("lockkeeper-plain", "rslock"), ("lockkeeper-drop", "redis-rs"),
        ("lockkeeper-drop", "redislock")]

    @property
    def hosts(self):
        return [f"127.0.0.1:{self.port}"]

    @property
    def version(self):
        return f"Redis {info(self)['redis_version']}"


class Ensemble(ZooKeeper):
    """One ZooKeeper server, which does not wait for its disk."""

    kind = "zookeeper"
    rows, processes = CROWDS, 4
    beside = []

    @property
    def hosts(self):
        return [self.address]

    @property
    def version(self):
        return f"ZooKeeper {self.ask('srvr').split('version: ')[1].split('-')[0]}"


class Database(Postgres):
    """A PostgreSQL server whose commits reach the disk."""

    kind = "postgres"
    rows, processes = ALONE, 8
    beside = []

    def __enter__(self):
        super().__enter__()
        wait("advisory locks are granted", lambda: self.sql("SELECT clock_timestamp() > "
            f"pg_postmaster_start_time() + interval '{YOUNG + 1} s'") == "t")
        return self

    @property
    def hosts(self):
        return [f"127.0.0.1:{self.port}"]

    @property
    def version(self):
        return f"PostgreSQL {self.sql('SHOW server_version').split()[0]}"


KINDS = [Redis, Ensemble, Redlock, Database]


class Driver(Program):
    """One process of a library."""

    def __init__(self, library, kind, hosts):
        super().__init__([os.path.join(HERE, library, "run"), kind, *hosts])
        word, self.version, self.settings = self.hear().split("\t")
        assert word == "ready", f"{library}: {word}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Window:
    """What processes of one library did in one window: times in µs, sorted, and the rate."""

    def __init__(self, drivers, milliseconds, names):
        for driver in drivers:
            driver.tell("turn", str(milliseconds), *names)
        said = [driver.hear().split() for driver in drivers]
        failed = next((words for words in said if words[:1] == ["error"]), [])
        assert not failed, " ".join(failed)
        words = sum(said, [])
        assert words, "nobody had the lock"
        times = [[int(part) / 1000 for part in word.split("/")] for word in words]
        # 1: all had it equally often; 0: one of them never had it.
        self.least = min(map(len, said)) * len(said) / len(words)
        self.waits = sorted(waited for waited, _ in times)
        self.wholes = sorted(whole for _, whole in times)
        self.rate = len(times) * 1000 / milliseconds


def at(ordered, quantile):
    return ordered[round((len(ordered) - 1) * quantile)]


def libraries(kind):
    for library in sorted(os.listdir(HERE)):
        kinds = os.path.join(HERE, library, "kinds")
        if os.path.exists(kinds) and kind in open(kinds).read().split():
            yield library


def spread(ratios):
    ordered = sorted(ratios)
    median = statistics.median(ordered)
    return f"{median:.2f} ({at(ordered, 0.1):.2f}-{at(ordered, 0.9):.2f})"


def measure(servers, crews, row, times, rounds):
    """Windows of each library, in turn; the first round is a warm-up unless it is the only one."""
    found = {library: [] for library in crews}
    milliseconds = times[row.contended]
    for turn in range(rounds + (rounds > 1)):
        for library, crew in crews.items():
            window = Window(crew[:row.processes], milliseconds, row.names(library))
            if turn > 0 or rounds == 1:
                found[library].append(window)
    report(servers, row, milliseconds, found)
    return found


def ratios(ours, theirs):
    """Of the time that lock and unlock take, and of the rates, window by window."""
    times = [at(us.wholes, 0.5) / at(them.wholes, 0.5) for us, them in zip(ours, theirs)]
    return times, [us.rate / them.rate for us, them in zip(ours, theirs)]


def report(servers, row, milliseconds, found):
    print(f"\n{servers.kind}, {row.label}, {len(found[OURS])} windows of {milliseconds} ms")
    print(f"  {'':20} {'lock + unlock, µs':>18} {'ours/theirs':>18} {'wait p50, ms':>13}"
        f" {'p99':>8} {'longest':>8} {'a second':>9} {'ours/theirs':>18} {'least share':>12}")
    for library, windows in found.items():
        middle = [at(window.wholes, 0.5) for window in windows]
        times, rates = ratios(found[OURS], windows)
        waits = sorted(waited / 1000 for window in windows for waited in window.waits)
        rate = statistics.median(window.rate for window in windows)
        # Nobody says what each caller inside a process had.
        least = f"{statistics.median(window.least for window in windows):.2f}"
        least = least if row.processes > 1 else "-"
        print(f"  {library:20} {statistics.median(middle):18.0f} {spread(times):>18}"
            f" {at(waits, 0.5):13.2f} {at(waits, 0.99):8.1f} {waits[-1]:8.1f} {rate:9.0f}"
            f" {spread(rates):>18} {least:>12}", flush=True)
    for ours, theirs in servers.beside:
        times, rates = ratios(found[ours], found[theirs])
        print(f"  {f'{ours} / {theirs}':39} {spread(times):>18} {'':42}{spread(rates):>18}",
            flush=True)


def each_for_itself(found):
    """What many processes have together of what two have."""
    two, many = (found[processes] for processes in sorted(found)[-2:])
    for library in two:
        shares = [m.rate / t.rate for t, m in zip(two[library], many[library])]
        print(f"  {library:20} rate of {max(found)} processes by that of two: {spread(shares)}")


@contextmanager
def placed(server, client):
    """On which processors a server runs that starts in the block, and what then is called by what
    the block is given."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, server)
    try:
        yield lambda: os.sched_setaffinity(0, client)
    finally:
        os.sched_setaffinity(0, everywhere)


def placements():
    """How servers and clients may share the processors, beside freely."""
    first, *others = sorted(os.sched_getaffinity(0))
    yield "on one processor", {first}, {first}
    if others:
        yield "server on one processor, client on another", {first}, {others[0]}


def start(servers, processes, stack):
    """That many processes of each library."""
    crews = {}
    for library in libraries(servers.kind):
        driver = lambda: stack.enter_context(Driver(library, servers.kind, servers.hosts))
        crews[library] = [driver() for _ in range(processes)]
    return crews


def bench(kind, processes, times, rounds):
    """All rows of a kind of deployment; `processes` contend at most, beside two. A window takes
    the first of the times in ms, and the second where callers contend."""
    with kind() as servers, ExitStack() as stack:
        print(f"\n{servers.version}", flush=True)
        crews = start(servers, processes, stack)
        for library, (first, *_) in crews.items():
            print(f"{library} {first.version}: {first.settings}", flush=True)
        for row in servers.rows:
            measure(servers, crews, row, times, rounds)
        found = {many: measure(servers, crews, Row(f"one lock, {many} processes", many),
            times, rounds) for many in sorted({2, processes})}
        if len(found) > 1:
            each_for_itself(found)


def bench_placed(kind, times, rounds):
    """The free lock again, with client and server where they are put."""
    for where, server, client in placements():
        with placed(server, client) as clients_now, kind() as servers, ExitStack() as stack:
            clients_now()
            crews = start(servers, 1, stack)
            measure(servers, crews, Row(f"free lock, {where}", 1), times, rounds)


def main(words):
    begun = time.monotonic()
    print(f"{os.cpu_count()} processors, {os.environ['PROFILE']} build of lockkeeper, load "
        f"{os.getloadavg()[0]:.1f}")
    asked = words[2:] or [kind.kind for kind in KINDS]
    unknown = set(asked) - {kind.kind for kind in KINDS}
    assert not unknown, f"there is no kind {', '.join(unknown)}"
    for kind in [kind for kind in KINDS if kind.kind in asked]:
        if words[0] == "brief":
            bench(kind, 2, (250, 500), 1)
        else:
            bench(kind, kind.processes, (500, 2000), int(words[1]))
            if kind.rows is CROWDS:
                bench_placed(kind, (500, 2000), int(words[1]))
    print(f"\nload {os.getloadavg()[0]:.1f} at the end, after {time.monotonic() - begun:.0f} s")
    print("1 passed, 0 failed")


main(sys.argv[1:])
