"""What every lock of a Java library has to do beside lockkeeper's of the same name: exclude it,
and wake it, both ways."""

import time

from background import in_background
from harness import Holder, attempt, case, soon_mostly


def both_ways(java, peer, kind, url, flags, option, limit):
    """Tries the lock `kind` of the Java program under names made of `option`; a wake-up may take
    `limit` seconds."""
    for name in [f"any-{option}", f"{option}/below", f"{option} space", f"{option}{{braced}}",
            f"{option}-é"]:
        assert java.ask("try", kind, name) == "true"
        assert attempt(url, name,
            *flags) == 75, f"{option}: lockkeeper must see {peer}'s lock on {name}"
        java.ask("unlock", kind, name)
        ours = Holder(url, name, *flags).wait_granted()
        assert java.ask("try", kind,
            name) == "false", f"{option}: {peer} must see lockkeeper's lock on {name}"
        ours.release()
    case(f"{option}: each excludes the other, whatever the name")

    name = f"wake-{option}"

    def wakes_us():
        java.ask("lock", kind, name)
        ours = Holder(url, name, *flags)
        granted = in_background(ours)
        assert ours.granted_at is None
        released = time.monotonic()
        java.ask("unlock", kind, name)
        granted.join()
        ours.release()
        return ours.granted_at - released

    def is_woken():
        ours = Holder(url, name, *flags).wait_granted()
        java.tell("lock", kind, name)
        time.sleep(0.5)
        released = time.time()
        ours.release()
        assert java.hear() == "true"
        woken = java.at
        java.ask("unlock", kind, name)
        return woken - released

    soon_mostly(f"{option}: woken by {peer}'s release", [wakes_us() for _ in range(3)], limit)
    soon_mostly(f"{option}: {peer} woken by our release", [is_woken() for _ in range(3)], limit)
    case(f"{option}: each wakes the other")
