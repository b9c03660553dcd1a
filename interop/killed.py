"""Holders that are killed: the next one has the lock once their session is over."""

import time

from background import in_background
from harness import soon
from zookeeper import SESSION


def either_side(peer, what, ours, kill, wait, late):
    """Ours waits behind a holder of the peer's that `kill` ends; then the peer waits behind
    ours, which is killed.

    `wait` begins their waiting and answers what waits for its end; they may be `late` by so many
    seconds."""
    granted = in_background(ours)
    killed = time.monotonic()
    kill()
    granted.join()
    soon(f"{peer}'s holder{what} killed: ours has it", killed, ours.granted_at, SESSION * 7 / 4 + 1)
    has_it = wait()
    killed = time.monotonic()
    ours.process.kill()
    ours.process.wait()
    has_it()
    soon(f"our holder{what} killed: {peer} has it", killed, time.monotonic(),
        SESSION * 7 / 4 + late)
