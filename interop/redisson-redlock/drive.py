"""RedissonRedLock, of RLocks and of RFairLocks, and RedissonMultiLock, beside lockkeeper with
layout=redisson on the same members."""

from harness import done
from java import Java
from quorum import SHORT, beside

for kind, lock in [("plain", "plain"), ("fair", "fair"), ("multi", "plain")]:
    print(f"of {kind} locks")
    beside("Redisson", lambda ports, kind=kind: Java("Peer", str(1000 * SHORT), kind, *ports),
        f"layout=redisson&lock={lock}", majority=kind != "multi")
done()
