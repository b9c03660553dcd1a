"""kazoo and lockkeeper with layout=kazoo: lock, read-write, election, barrier, both ways."""

import multiprocessing
import threading
import time

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

from background import in_background
from harness import Holder, attempt, case, done, soon, wait
from zookeeper import SESSION, ZooKeeper


def connect(address):
    client = KazooClient(address, timeout=SESSION)
    client.start()
    return client


def busy(lock):
    """Whether a try finds it taken; given back if not."""
    taken = lock.acquire(blocking=False)
    if taken:
        lock.release()
    return not taken


def hold_for_ever(address, name, held):
    connect(address).Lock(name).acquire()
    held.set()
    time.sleep(3600)


def both_ways(url, name, flags, theirs):
    theirs.acquire()
    assert attempt(url, name, *flags) == 75, f"lockkeeper must see kazoo's lock on {name}"
    ours = Holder(url, name, *flags)
    granted = in_background(ours)
    assert ours.granted_at is None
    released = time.monotonic()
    theirs.release()
    granted.join()
    soon("woken by kazoo's release", released, ours.granted_at)
    assert busy(theirs), f"kazoo must see lockkeeper's lock on {name}"
    got = []
    thread = threading.Thread(target=lambda: (theirs.acquire(timeout=15), got.append(time.monotonic())))
    thread.start()
    time.sleep(0.5)
    assert not got
    released = ours.release()
    thread.join()
    # A free lock costs kazoo up to a second of sleep (its retry waits with a whole second's jitter).
    soon("kazoo woken by our release", released, got[0], 2.0)
    theirs.release()


with ZooKeeper() as server:
    client, url = connect(server.address), server.url("layout=kazoo")
    for name in ["any", "below/any", "with space", "é"]:
        both_ways(url, name, (), client.Lock(f"/{name}"))
    case("Lock: each excludes and wakes the other, whatever the name")
    both_ways(url, "rw", ("-w",), client.WriteLock("/rw"))
    case("WriteLock: each excludes and wakes the other")

    reader = client.ReadLock("/shared")
    reader.acquire()
    ours = Holder(url, "shared", "-s").wait_granted()
    assert attempt(url, "shared", "-w") == 75 and busy(client.WriteLock("/shared"))
    reader.release()
    assert busy(client.WriteLock("/shared")), "ours still reads"
    ours.release()
    writer = Holder(url, "shared", "-w").wait_granted()
    try:
        client.ReadLock("/shared").acquire(timeout=0.5)
        raise AssertionError("kazoo read beside our writer")
    except LockTimeout:
        pass
    writer.release()
    assert not busy(client.WriteLock("/shared"))
    case("readers of both share, and keep writers of both out")

    ours = Holder(url, "leader", "--elect", "rust").wait_granted()
    election, leads = client.Election("/leader", "python"), threading.Event()
    thread = threading.Thread(target=lambda: election.run(leads.wait))
    thread.start()
    wait("kazoo stands", lambda: election.contenders() == ["rust", "python"])
    waiting = Holder(url, "leader", "--elect", "rust")
    ours.release()
    granted = in_background(waiting)
    assert waiting.granted_at is None, "kazoo leads"
    leads.set()
    thread.join()
    granted.join()
    waiting.release()
    case("one leader among both, seen by its id")

    barrier = client.Barrier("/barrier")
    barrier.create()
    waiting = Holder(url, "barrier", "--wait")
    waits = in_background(waiting)
    assert waiting.granted_at is None
    barrier.remove()
    waits.join()
    waiting.release()
    closed = Holder(url, "barrier", "--latch").wait_granted()
    assert not barrier.wait(0.3)
    closed.release()
    assert barrier.wait(5)
    case("kazoo's barrier is a latch of one, and a latch is its barrier")

    held = multiprocessing.Event()
    process = multiprocessing.Process(target=hold_for_ever, args=(server.address, "/dead", held))
    process.start()
    assert held.wait(20)
    ours = Holder(url, "dead")
    granted = in_background(ours)
    killed = time.monotonic()
    process.kill()
    process.join()
    granted.join()
    soon("kazoo's holder killed: ours has it", killed, ours.granted_at, SESSION * 7 / 4 + 1)
    ours.process.kill()
    ours.process.wait()
    killed = time.monotonic()
    client.Lock("/dead").acquire(timeout=15)
    soon("our holder killed: kazoo has it", killed, time.monotonic(), SESSION * 7 / 4 + 2)
    case("a killed holder of either side is passed once its session is over")
    client.stop()
    done()
