"""kazoo and lockkeeper with layout=kazoo: lock, read-write, semaphore, election, barriers, both
ways."""

import multiprocessing
import threading
import time

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

from background import in_background
from harness import PATIENCE, Holder, attempt, case, done, soon, soon_mostly, wait
from killed import either_side
from permits import each_in_its_turn
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


def hold_permit_for_ever(address, name, held):
    connect(address).Semaphore(name, max_leases=1).acquire()
    held.set()
    time.sleep(3600)


def in_thread(work):
    """Does it beside us; what is answered waits for its end, and says when that was."""
    ended = []
    thread = threading.Thread(target=lambda: (work(), ended.append(time.monotonic())))
    thread.start()

    def end():
        thread.join(PATIENCE)
        assert ended, "it did not end well"
        return ended[0]

    return end


class KazoosPermit:
    """One of kazoo's that waits for a permit."""

    def __init__(self, client, name):
        self.semaphore, self.has = client.Semaphore(f"/{name}", max_leases=1), False
        self.got = in_thread(self.acquire)
        time.sleep(0.5)

    def acquire(self):
        assert self.semaphore.acquire(timeout=15)
        self.has = True

    def has_it(self):
        return self.has

    def wait(self):
        self.got()

    def give_back(self):
        self.semaphore.release()


def both_ways(url, name, flags, theirs):
    theirs.acquire()
    assert attempt(url, name, *flags) == 75, f"lockkeeper must see kazoo's lock on {name}"
    theirs.release()

    def wakes_us():
        theirs.acquire()
        ours = Holder(url, name, *flags)
        granted = in_background(ours)
        assert ours.granted_at is None
        released = time.monotonic()
        theirs.release()
        granted.join()
        ours.release()
        return ours.granted_at - released

    soon_mostly("woken by kazoo's release", [wakes_us() for _ in range(3)])
    ours = Holder(url, name, *flags).wait_granted()
    assert busy(theirs), f"kazoo must see lockkeeper's lock on {name}"
    got = []
    thread = threading.Thread(target=lambda: (theirs.acquire(timeout=15),
        got.append(time.monotonic())))
    thread.start()
    time.sleep(0.5)
    assert not got
    released = ours.release()
    thread.join()
    # A free lock costs kazoo up to a second of sleep (its retry waits with a whole second's
    # jitter).
    soon("kazoo woken by our release", released, got[0], 2.0)
    theirs.release()


def one_is_killed(what, hold, path, ours, theirs):
    """A process of kazoo's that holds `path` is killed, and then ours that had it after it."""
    held = multiprocessing.Event()
    process = multiprocessing.Process(target=hold, args=(server.address, path, held))
    process.start()
    assert held.wait(PATIENCE)

    def kill():
        process.kill()
        process.join()

    either_side("kazoo", what, ours(), kill, lambda: in_thread(lambda: acquire(theirs)), 2)


def acquire(theirs):
    assert theirs.acquire(timeout=15)


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

    shared = server.url("layout=kazoo&semaphore=shared")
    ours = Holder(shared, "gpu", "--permits", "1/2").wait_granted()
    theirs = client.Semaphore("/gpu", max_leases=2)
    assert theirs.acquire(blocking=False)
    assert attempt(shared, "gpu", "--permits", "1/2") == 75
    assert not client.Semaphore("/gpu", max_leases=2).acquire(blocking=False)
    assert sorted(client.Semaphore("/gpu",
        max_leases=2).lease_holders())[0] == "", "kazoo's holder said nothing"
    waiting = Holder(shared, "gpu", "--permits", "1/2")
    waits = in_background(waiting)
    assert waiting.granted_at is None
    released = time.monotonic()
    theirs.release()
    waits.join()
    soon("a permit that kazoo gave back", released, waiting.granted_at)
    got = in_thread(lambda: theirs.acquire(timeout=15))
    time.sleep(0.5)
    released = ours.release()
    soon("kazoo has the permit that we gave back", released, got(), 2.0)
    theirs.release()
    waiting.release()
    try:
        client.Semaphore("/gpu", max_leases=3).acquire(blocking=False)
        raise AssertionError("kazoo took another limit")
    except ValueError:
        pass
    client.Semaphore("/by-kazoo", max_leases=2).acquire()
    assert attempt(shared, "by-kazoo", "--permits", "1/2") == 0, "one is free"
    case("Semaphore: permits are counted together, and wake each other")

    each_in_its_turn(shared, ["KO", "OK", "KOKO", "OOKK"], lambda _,
        name: KazoosPermit(client, name))

    for at in range(2):
        name = f"double-{at}"
        theirs = client.DoubleBarrier(f"/{name}", 2)
        entered = in_thread(theirs.enter)
        ours = Holder(url, name, "--double", "2").wait_granted()
        entered()
        if at == 0:
            ours.process.stdin.close()
            time.sleep(0.3)
            assert ours.process.poll() is None, "kazoo has not finished"
            theirs.leave()
            assert ours.process.wait(PATIENCE) == 0
        else:
            left = in_thread(theirs.leave)
            time.sleep(0.3)
            ours.release()
            left()
    case("DoubleBarrier: both begin together and go together")

    permit = client.Semaphore("/dead-permit", max_leases=1)
    one_is_killed(" of a permit", hold_permit_for_ever, "/dead-permit",
        lambda: Holder(shared, "dead-permit", "--permits", "1/1"), permit)
    case("a killed holder's permit is passed once its session is over")

    one_is_killed("", hold_for_ever, "/dead", lambda: Holder(url, "dead"), client.Lock("/dead"))
    case("a killed holder of either side is passed once its session is over")
    client.stop()
    done()
