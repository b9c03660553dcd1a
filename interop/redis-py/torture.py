"""redis-py's Lock as a client of `lockkeeper torture` (docs/torture.md):

lockkeeper torture redis:auto --client exec:'target/interop/redis-py/bin/python
interop/redis-py/torture.py'"""

import os
import sys
import time

import redis

url = os.environ["LOCKKEEPER_TORTURE_URL"].split("?")[0]
ttl_ms = int(os.environ["LOCKKEEPER_TORTURE_TTL_MS"])
server = redis.Redis.from_url(url, socket_timeout=2)
lock = None


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def acquire(name, patience_ms):
    """Tries until the patience is over. What is held is believed in from before the request that
    got it."""
    global lock
    until = now() + int(patience_ms) * 1_000_000
    while now() < until:
        lock = server.lock(name, timeout=ttl_ms / 1000, thread_local=False)
        before = now()
        if lock.acquire(blocking=False):
            return f"held {before + ttl_ms * 900_000}"
        time.sleep(0.005)
    return "busy"


def release():
    try:
        lock.release()
        return "released"
    except redis.exceptions.LockNotOwnedError:
        return "not-ours"


for line in sys.stdin:
    verb, *words = line.split()
    try:
        answer = {
            "acquire": acquire,
            "check": lambda: "yes" if lock.owned() else "no",
            "token": lambda: "-",  # it has none
            "release": release,
        }[verb](*words)
    except (redis.exceptions.RedisError, OSError) as error:
        answer = f"unknown {type(error).__name__}"
    print(answer, flush=True)
