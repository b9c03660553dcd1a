"""All three layouts on PostgreSQL 17: acquire, wait, renew, share."""

import os
import tarfile
import tempfile
import time
import zipfile

from background import in_background
from harness import Holder, attempt, case, done, wait
from postgres import Postgres

# A lease that is short enough to see that it was renewed.
SHORT = 3
LAYOUTS = [f"ttl={SHORT}s", f"layout=session&names=hash&session_timeout={SHORT}s",
    f"layout=shedlock&ttl={SHORT}s"]


def unpack(place):
    """Where the server's own user may run it."""
    os.chmod(place, 0o755)
    with zipfile.ZipFile(os.environ["PACKED"]) as jar, \
            jar.open("postgres-linux-x86_64.txz") as packed, \
            tarfile.open(fileobj=packed, mode="r|xz") as archive:
        archive.extractall(place)
    return os.path.join(place, "bin")


def excludes_and_passes(url):
    ours = Holder(url, "a").wait_granted()
    assert attempt(url, "a") == 75, "it is held"
    assert attempt(url, "b") == 0, "another name is free"
    next_one = Holder(url, "a")
    granted = in_background(next_one)
    # Beyond a lease.
    time.sleep(1.5 * SHORT)
    assert next_one.granted_at is None and attempt(url, "a") == 75, "it was renewed"
    ours.release()
    granted.join()
    assert next_one.granted_at is not None
    next_one.release()
    wait("it is free", lambda: attempt(url, "a") == 0)


with tempfile.TemporaryDirectory(prefix="lockkeeper-interop-") as place:
    with Postgres(unpack(place)) as server:
        version = server.sql("SHOW server_version")
        assert version.startswith("17."), version
        for layout in LAYOUTS:
            excludes_and_passes(server.url(layout))
            case(f"PostgreSQL {version}, {layout}: held, waited for beyond a lease, handed on")
        for layout in LAYOUTS[:2]:
            url = server.url(layout)
            readers = [Holder(url, "shared", "-s").wait_granted() for _ in range(2)]
            assert attempt(url, "shared") == 75, "it is read"
            for reader in readers:
                reader.release()
            wait("it is free", lambda: attempt(url, "shared") == 0)
            case(f"PostgreSQL {version}, {layout}: two read together")
        done()
