"""Redisson and lockkeeper with layout=redisson: exclusion and wake-up both ways, re-entry,
order, readers and permits."""

import time

from background import in_background
from both_ways import both_ways
from harness import Holder, Server, attempt, case, done, soon_mostly
from java import Java


with Server() as server:
    java = Java("Peer", str(server.port))
    types = {"plain": ("lock", ()), "fenced": ("fenced", ()), "fair": ("fair", ()),
        "rw": ("write", ())}
    for option, (kind, flags) in types.items():
        both_ways(java, "Java", kind, server.url(f"layout=redisson&lock={option}"), flags, option,
            0.1)

    url = server.url("layout=redisson&lock=fair")
    others = [Java("Peer", str(server.port)) for _ in range(2)]
    java.ask("lock", "fair", "order")
    others[0].tell("lock", "fair", "order")
    time.sleep(0.5)
    ours = Holder(url, "order")
    granted = in_background(ours)
    time.sleep(0.5)
    others[1].tell("lock", "fair", "order")
    time.sleep(0.5)
    java.ask("unlock", "fair", "order")
    assert others[0].hear() == "true"
    time.sleep(1)
    assert ours.granted_at is None
    others[0].ask("unlock", "fair", "order")
    granted.join()
    ours.release()
    assert others[1].hear() == "true"
    assert ours.granted_at is not None, "ours came before the one behind it"
    others[1].ask("unlock", "fair", "order")
    for other in others:
        other.end()
    case("fair: first come, first served, whoever it is")

    url = server.url("layout=redisson")
    java.ask("lock", "lock", "twice")
    java.ask("lock", "lock", "twice")
    assert java.ask("count", "lock", "twice") == "2"
    java.ask("unlock", "lock", "twice")
    assert attempt(url, "twice") == 75, "still held once"
    java.ask("unlock", "lock", "twice")
    assert attempt(url, "twice") == 0
    case("Java's re-entry is counted")

    url = server.url("layout=redisson&lock=fenced")
    first = int(java.ask("token", "fenced", "token"))
    java.ask("unlock", "fenced", "token")
    ours = Holder(url, "token").wait_granted()
    ours.release()
    assert int(java.ask("token", "fenced", "token")) == first + 2, "one counter for both"
    java.ask("unlock", "fenced", "token")
    case("fencing tokens come from one counter")

    url = server.url("layout=redisson&lock=rw")
    assert java.ask("try", "read", "shared") == "true"
    reader = Holder(url, "shared", "-s").wait_granted()
    assert attempt(url, "shared") == 75
    java.ask("unlock", "read", "shared")
    assert java.ask("try", "write", "shared") == "false"
    reader.release()
    assert java.ask("try", "write", "shared") == "true"
    java.ask("unlock", "write", "shared")
    case("readers of both share, and keep writers of both out")

    url = server.url("layout=redisson")
    two = Holder(url, "gpu", "--permits", "2/3").wait_granted()
    assert java.ask("permits", "lock", "gpu") == "1"
    permit = java.ask("permit", "lock", "gpu")
    assert permit != "null" and java.ask("permit", "lock", "gpu") == "null"
    assert attempt(url, "gpu", "--permits", "1/3") == 75
    java.ask("release", "lock", "gpu", permit)
    assert attempt(url, "gpu", "--permits", "1/3") == 0
    two.release()
    assert java.ask("permits", "lock", "gpu") == "3"
    case("permits are counted together")
    url = server.url("layout=redisson&semaphore=simple")
    theirs, ours_woken = [], []
    for name in ["rooms", "two rooms", "rooms{braced}", "rooms-é"]:
        assert java.ask("rooms", "sem", name, "3") == "true"
        ours = Holder(url, name, "--permits", "2/3").wait_granted()
        assert java.ask("free", "sem", name) == "1"
        assert java.ask("room", "sem", name, "1") == "true"
        assert attempt(url, name, "--permits", "1/3") == 75
        java.tell("room", "sem", name, "2")
        time.sleep(0.5)
        released = time.time()
        ours.release()
        assert java.hear() == "true"
        theirs.append(java.at - released)
        waiting = Holder(url, name, "--permits", "3/3")
        granted = in_background(waiting)
        released = time.monotonic()
        java.ask("leave", "sem", name, "3")
        granted.join()
        ours_woken.append(waiting.granted_at - released)
        waiting.release()
        assert java.ask("free", "sem", name) == "3"
    soon_mostly("RSemaphore: Java woken by our release", theirs)
    soon_mostly("RSemaphore: woken by Java's release", ours_woken)
    case("RSemaphore is counted together, and each wakes the other")

    url = server.url("layout=redisson")
    theirs, ours_woken = [], []
    for name in ["import", "an import", "import-é"]:
        closed = Holder(url, name, "--latch").wait_granted()
        assert java.ask("left", "latch", name) == "1"
        assert java.ask("close", "latch", name, "1") == "false", "closed already"
        java.tell("open", "latch", name)
        time.sleep(0.3)
        opened = time.time()
        closed.release()
        assert java.hear() == "true"
        theirs.append(java.at - opened)
        assert java.ask("close", "latch", name, "2") == "true"
        waiting = Holder(url, name, "--wait")
        granted = in_background(waiting)
        java.ask("down", "latch", name)
        assert waiting.granted_at is None, "one is left"
        opened = time.monotonic()
        java.ask("down", "latch", name)
        granted.join()
        ours_woken.append(waiting.granted_at - opened)
        waiting.release()
    soon_mostly("RCountDownLatch: Java woken by our count", theirs)
    soon_mostly("RCountDownLatch: woken by Java's count", ours_woken)
    case("a latch opens for both, whoever counts")

    one, two = "multi one", "multi-é"
    assert java.ask("both", "multi", one, two) == "true"
    assert attempt(url, one) == 75 and attempt(url, two) == 75, "RMultiLock is its RLocks"
    assert attempt(url, one, "--all", two) == 75
    java.ask("neither", "multi", one, two)
    ours = Holder(url, two).wait_granted()
    assert java.ask("both", "multi", one, two) == "false"
    assert attempt(url, one) == 0, "what Java could have is left again"
    assert attempt(url, one, "--all", two) == 75
    ours.release()
    ours = Holder(url, one, "--all", two).wait_granted()
    assert java.ask("both", "multi", two, one) == "false"
    assert java.ask("try", "lock", one) == "false" and java.ask("try", "lock", two) == "false"
    ours.release()
    assert java.ask("both", "multi", one, two) == "true"
    java.ask("neither", "multi", one, two)
    case("several locks at once: RMultiLock and ours, all or none")
    java.end()
    done()
