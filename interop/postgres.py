"""A PostgreSQL server of a driver's own."""

import os
import shutil
import signal
import subprocess
import tempfile

from harness import free_port, wait

BIN = "/usr/lib/postgresql/15/bin"
USER = "keeper"
# PostgreSQL refuses to run as root.
NOBODY = 65534


class Postgres:
    """On a free port, gone with the block; of the programs in `bin`."""

    def __init__(self, bin=BIN):
        self.bin = bin

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="lockkeeper-interop-")
        root = os.geteuid() == 0
        self.who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if root else {}
        if root:
            os.chown(self.dir, NOBODY, NOBODY)
        data = os.path.join(self.dir, "data")
        subprocess.run([f"{self.bin}/initdb", "--no-sync", "--no-locale", "--encoding=UTF8",
            "--auth=trust", "--username", USER, "--pgdata", data], check=True, cwd=self.dir,
            stdout=subprocess.DEVNULL, **self.who)
        self.port = free_port()
        self.process = subprocess.Popen([f"{self.bin}/postgres", "-D", data, "-h", "127.0.0.1",
            "-p", str(self.port), "-k", self.dir], cwd=self.dir, stderr=subprocess.DEVNULL,
            **self.who)
        wait("the server answers", lambda: self.ask("SELECT 1").stdout.strip() == "1")
        return self

    def __exit__(self, *_):
        # At once, and with its own processes: they write there until they end.
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def ask(self, sql):
        """By its socket: at its port somebody else may have been faster."""
        return subprocess.run([f"{BIN}/psql", "-XqAt", "-h", self.dir, "-p", str(self.port), "-U",
            USER, "-d", "postgres", "-c", sql], cwd="/", capture_output=True, text=True)

    def sql(self, sql):
        done = self.ask(sql)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def url(self, options):
        return f"postgres://{USER}@127.0.0.1:{self.port}/postgres?{options}"

    def jdbc(self):
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?user={USER}"
