"""The statement of a guard in a transaction of sqlx, on the database that has the lock."""

import os
import subprocess

from harness import case, done
from postgres import Postgres

with Postgres() as server:
    words = [os.environ["SELLS"], server.url("sslmode=disable")]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == [
        "under the lock: sold: true, 4 left",
        "given back: Clean",
        "after it: sold: false, 4 left",
    ], said.stdout
    case("sqlx commits under the lock, and not after it")
    done()
