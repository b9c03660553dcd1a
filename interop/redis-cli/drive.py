"""The lock commands of the articles, by redis-cli, on the same key as lockkeeper with
layout=plain."""

import threading
import time

from harness import Holder, Server, attempt, case, done, soon

UNLOCK = (
    "if redis.call('get', KEYS[1]) == ARGV[1] "
    "then return redis.call('del', KEYS[1]) else return 0 end"
)
SETNX_EXPIRE = (
    "if redis.call('setnx', KEYS[1], ARGV[1]) == 1 "
    "then redis.call('expire', KEYS[1], ARGV[2]) return 1 else return 0 end"
)

with Server() as server:
    url = server.url("layout=plain")
    ways = {
        "SETNX and DEL": (["SETNX", "lock", "me"], ["DEL", "lock"]),
        "SET NX PX and compare-and-delete": (["SET", "lock", "me", "NX", "PX", "30000"],
            ["EVAL", UNLOCK, "1", "lock", "me"]),
        "SET EX NX and DEL": (["SET", "lock", "me", "EX", "30", "NX"], ["DEL", "lock"]),
        "setnx and expire in one EVAL": (["EVAL", SETNX_EXPIRE, "1", "lock", "me", "30"],
            ["EVAL", UNLOCK, "1", "lock", "me"]),
    }
    for way, (lock, unlock) in ways.items():
        assert server.cli(*lock) in ("1", "OK"), way
        assert attempt(url, "lock") == 75, f"{way}: lockkeeper must see it"
        ours = Holder(url, "lock")
        granted = threading.Thread(target=ours.wait_granted)
        granted.start()
        time.sleep(0.3)
        assert ours.granted_at is None, f"{way}: two holders"
        released = time.monotonic()
        assert server.cli(*unlock) == "1", way
        granted.join()
        soon(f"woken after {way}", released, ours.granted_at)
        assert server.cli(*lock) in ("0", ""), f"{way}: the article's client must see ours"
        assert server.cli("EVAL", UNLOCK, "1", "lock", "me") == "0", f"{way}: it must not free ours"
        ours.release()
        assert server.cli("EXISTS", "lock") == "0"
        case(f"{way}: exclusion both ways, and woken at once")
    server.cli("SETNX", "lock", "crashed")
    server.cli("EXPIRE", "lock", "1")
    before = time.monotonic()
    ours = Holder(url, "lock").wait_granted()
    assert 0.5 < ours.granted_at - before < 1.6
    ours.release()
    case("SETNX + EXPIRE of a client that crashed: granted when it expires")
    done()
