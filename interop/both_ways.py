"""What every lock of a Java library has to do beside lockkeeper's of the same name: exclude it, and wake it, both ways."""

import time

from background import in_background
from harness import Holder, attempt, case, soon


def both_ways(java, peer, kind, url, flags, option, limit):
    """Tries the lock `kind` of the Java program under names made of `option`; a wake-up may take `limit` seconds."""
    for name in [f"any-{option}", f"{option}/below", f"{option} space", f"{option}{{braced}}", f"{option}-é"]:
        assert java.ask("try", kind, name) == "true"
        assert attempt(url, name, *flags) == 75, f"{option}: lockkeeper must see {peer}'s lock on {name}"
        java.ask("unlock", kind, name)
        ours = Holder(url, name, *flags).wait_granted()
        assert java.ask("try", kind, name) == "false", f"{option}: {peer} must see lockkeeper's lock on {name}"
        ours.release()
    case(f"{option}: each excludes the other, whatever the name")

    name = f"wake-{option}"
    java.ask("lock", kind, name)
    ours = Holder(url, name, *flags)
    granted = in_background(ours)
    assert ours.granted_at is None
    released = time.monotonic()
    java.ask("unlock", kind, name)
    granted.join()
    soon(f"{option}: woken by {peer}'s release", released, ours.granted_at, limit)
    java.tell("lock", kind, name)
    time.sleep(0.5)
    released = time.time()
    ours.release()
    assert java.hear() == "true"
    soon(f"{option}: {peer} woken by our release", released, java.at, limit)
    java.ask("unlock", kind, name)
    case(f"{option}: each wakes the other")
