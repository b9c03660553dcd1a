"""redis-py's Lock and lockkeeper with layout=plain: exclusion and wake-up both ways, on awkward
names too."""

import threading
import time

import redis

from harness import Holder, Server, attempt, case, done, soon, wait

with Server() as server:
    client = redis.Redis(port=server.port)
    url = server.url("layout=plain")
    for name in ["a", "with space", "{braced}", "é", "a/b:c"]:
        theirs = client.lock(name, timeout=30)
        assert theirs.acquire(blocking=False)
        assert attempt(url, name) == 75, "lockkeeper must see redis-py's lock"
        theirs.release()
        ours = Holder(url, name).wait_granted()
        assert not client.lock(name,
            timeout=30).acquire(blocking=False), "redis-py must see lockkeeper's lock"
        ours.release()
        assert client.lock(name, timeout=30).acquire(blocking=False)
        client.delete(name)
    case("each excludes the other, whatever the name")

    theirs = client.lock("wake", timeout=30)
    theirs.acquire()
    ours = Holder(url, "wake")
    granted = threading.Thread(target=ours.wait_granted)
    granted.start()
    wait("lockkeeper waits", lambda: "name=lockkeeper" in server.cli("CLIENT", "LIST"))
    time.sleep(0.3)
    released = time.monotonic()
    theirs.release()
    granted.join()
    soon("woken by redis-py's release", released, ours.granted_at)
    case("a release of redis-py wakes lockkeeper at once")

    waiting = client.lock("wake", timeout=30, sleep=0.01, thread_local=False)
    got = []
    thread = threading.Thread(target=lambda: (waiting.acquire(), got.append(time.monotonic())))
    thread.start()
    time.sleep(0.3)
    assert not got
    released = ours.release()
    thread.join()
    soon("redis-py had it after our release", released, got[0])
    waiting.release()
    case("a release of lockkeeper lets redis-py in")

    forever = client.lock("forever")  # no time to live
    forever.acquire()
    assert attempt(url, "forever") == 75
    forever.release()
    assert attempt(url, "forever") == 0
    case("a lock without a time to live is understood")

    short = client.lock("dead", timeout=0.5)
    short.acquire()
    before = time.monotonic()
    ours = Holder(url, "dead").wait_granted()
    assert ours.granted_at - before < 1.0, "a lease that ran out is noticed at its end"
    ours.release()
    try:
        short.release()
        raise AssertionError("redis-py freed what was not its own")
    except redis.exceptions.LockError:
        pass
    case("a dead redis-py client's lock passes on when its lease ends")
    done()
