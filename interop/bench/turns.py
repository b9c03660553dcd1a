"""What the drivers in Python share: lines, and a thread for each name. See peers.py."""

import sys
import threading
import time


def serve(version, settings, lock_named):
    """`lock_named` makes the lock of one of so many threads, with `acquire` and `release`."""
    print("ready", version, settings, sep="\t", flush=True)
    for line in sys.stdin:
        _, milliseconds, *names = line.rstrip("\n").split("\t")
        locks = [lock_named(name, len(names)) for name in names]
        try:
            answer = " ".join(f"{waited}/{whole}" for waited, whole in turns(locks, milliseconds))
        except Exception as error:
            answer = f"error {error!r}"
        print(answer, flush=True)


def turns(locks, milliseconds):
    if len(locks) == 1:
        return turn(locks[0], milliseconds)
    had, failed = [], []

    def caller(lock):
        try:
            had.extend(turn(lock, milliseconds))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=caller, args=[lock]) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return had


def turn(lock, milliseconds):
    """Takes the lock and gives it back for as long as that."""
    had = []
    end = time.perf_counter_ns() + int(milliseconds) * 1_000_000
    while (asked := time.perf_counter_ns()) < end:
        lock.acquire()
        waited = time.perf_counter_ns() - asked
        lock.release()
        had.append((waited, time.perf_counter_ns() - asked))
    return had
