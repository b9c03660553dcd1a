"""Another library's Redlock and lockkeeper in its layout on five servers of their own:
exclusion, wake-ups, leases, members that are away, and both in one crowd."""

import os
import tempfile
import threading
import time
from contextlib import ExitStack

from background import in_background
from harness import Holder, Server, attempt, case, soon_mostly, wait

# A lease that lasts while something is done; members of the drivers' own count once they have been
# up for less.
LONGEST = 4
# A lease that is short enough to see its end.
SHORT = 2
# Other libraries look every 20 to 30 ms, and five of them may collide.
POLL = 0.5


class Members:
    """Five servers, gone with the block."""

    def __enter__(self):
        with ExitStack() as stack:
            self.servers = [stack.enter_context(Server()) for _ in range(5)]
            self.stack = stack.pop_all()
        self.ports = [str(server.port) for server in self.servers]
        return self

    def __exit__(self, *_):
        self.stack.close()

    def url(self, options):
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"redlock-lab://{hosts}?{options}"


def beside(library, start, options, majority=True):
    """`start(ports)` begins a process of the library; `options` say how it writes locks down.
    `majority`: the library needs no more of the members."""
    with Members() as members, ExitStack() as stack:
        url = members.url(f"{options}&ttl={LONGEST}s")
        short = members.url(f"{options}&ttl={SHORT}s")
        peers = [stack.enter_context(ending(start(members.ports))) for _ in range(3)]
        wait("the members count", lambda: all(map(counts, members.servers)))
        excludes(library, peers[0], url)
        wakes(library, peers[0], url)
        renews(library, peers[0], short)
        ends(library, peers[0], short)
        sells(library, peers, url, members.servers)
        if not majority:
            return
        for server in members.servers[3:]:
            server.process.kill()
            server.process.wait()
        excludes_without(library, peers[0], url)


def counts(server):
    info = dict(line.split(":", 1) for line in server.cli("INFO", "server").split() if ":" in line)
    return int(info["uptime_in_seconds"]) > LONGEST


class ending:
    """A peer whose input is closed at the end of the block."""

    def __init__(self, peer):
        self.peer = peer

    def __enter__(self):
        return self.peer

    def __exit__(self, *_):
        self.peer.kill()


def lease(seconds=LONGEST):
    return str(1000 * seconds)


def each_excludes_the_other(library, peer, url, name):
    assert peer.ask("try", name, lease()) == "true"
    assert attempt(url, name) == 75, f"lockkeeper must see {library}'s lock on {name}"
    assert peer.ask("unlock", name) == "true"
    ours = Holder(url, name).wait_granted()
    assert peer.ask("try", name, lease()) == "false", f"{library} must see our lock on {name}"
    ours.release()


def excludes(library, peer, url):
    for name in ["a", "with space", "{braced}", "é", "a/b:c"]:
        each_excludes_the_other(library, peer, url, name)
    case("each excludes the other, whatever the name")


def wakes(library, peer, url):
    def wakes_us():
        assert peer.ask("lock", "wake", lease()) == "true"
        ours = Holder(url, "wake")
        granted = in_background(ours)
        assert ours.granted_at is None
        released = time.monotonic()
        assert peer.ask("unlock", "wake") == "true"
        granted.join()
        ours.release()
        return ours.granted_at - released

    def has_it_after_us():
        ours = Holder(url, "wake").wait_granted()
        peer.tell("lock", "wake", lease())
        time.sleep(0.5)
        assert not peer.has_said_something(), f"{library} has what we hold"
        released = time.time()
        ours.release()
        assert peer.hear() == "true"
        at = peer.at
        assert peer.ask("unlock", "wake") == "true"
        return at - released

    soon_mostly(f"woken by {library}'s release", [wakes_us() for _ in range(3)])
    soon_mostly(f"{library} has it after our release", [has_it_after_us() for _ in range(3)], POLL)
    case(f"a release of {library} wakes lockkeeper, and one of ours lets {library} in")


def renews(library, peer, short):
    """For one and a half leases, by whoever holds."""
    assert peer.ask("keep", "theirs", lease(SHORT)) == "true"
    ours = Holder(short, "ours").wait_granted()
    end = time.monotonic() + 1.5 * SHORT
    while time.monotonic() < end:
        time.sleep(SHORT / 5)
        assert peer.ask("extend", "theirs", lease(SHORT)) == "true"
    assert attempt(short, "theirs") == 75, f"{library} has extended it"
    assert peer.ask("try", "ours", lease(SHORT)) == "false", "ours was renewed"
    assert peer.ask("unlock", "theirs") == "true"
    ours.release()
    case("both keep their locks beyond a lease")


def ends(library, peer, short):
    """The lease of a holder that says nothing more."""
    before = time.monotonic()
    assert peer.ask("try", "dead", lease(SHORT)) == "true"
    ours = Holder(short, "dead").wait_granted()
    took = ours.granted_at - before
    assert SHORT * 0.9 < took < SHORT + 2, f"{took:.1f} s, for a lease of {SHORT} s"
    assert peer.ask("unlock", "dead") == "false", f"{library} freed what was not its own"
    assert peer.ask("try", "dead", lease(SHORT)) == "false"
    ours.process.kill()
    ours.process.wait()
    before = time.monotonic()
    assert peer.ask("lock", "dead", lease()) == "true"
    took = time.monotonic() - before
    assert took < SHORT + 2, f"{took:.1f} s, for a lease of {SHORT} s"
    assert peer.ask("unlock", "dead") == "true"
    case("a dead holder's lock passes on when its lease ends, to either side")


def sells(library, peers, url, servers):
    """Three processes of each side sell from one stock under the lock."""
    stock, orders, ours_sold = 40, 12, []
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

        threads = [threading.Thread(target=sell) for _ in peers]
        for peer in peers:
            peer.tell("sell", "stock", file, str(orders))
        for thread in threads:
            thread.start()
        theirs = sum(int(peer.hear()) for peer in peers)
        for thread in threads:
            thread.join()
        with open(file) as left:
            assert left.read() == "0"
    ours = sum(ours_sold)
    assert len(ours_sold) == len(peers) and ours + theirs == stock, f"{ours} + {theirs} sold"
    print(f"  sold by {library}: {theirs}, by lockkeeper: {ours}")
    wait("nothing is left on any member",
        lambda: all(server.cli("EXISTS", "stock") == "0" for server in servers))
    case(f"{stock} on stock, and no more sold, with three processes of each side")


def excludes_without(library, peer, url):
    each_excludes_the_other(library, peer, url, "two away")
    case("two members are away, and each still excludes the other")
