"""A ZooKeeper server of a driver's own, from Debian's package, for the drivers of other
ZooKeeper libraries."""

import glob
import os
import shutil
import socket
import subprocess
import tempfile

from harness import attempt, free_port, wait

PARTS = ["zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "netty-*", "metrics-core",
    "snappy-java", "jackson-databind"]
SESSION = 4.0


class ZooKeeper:
    """A server on a free port, gone with the block; everything happens below the path /app."""

    def __enter__(self):
        self.port = free_port()
        self.dir = tempfile.mkdtemp(prefix="lockkeeper-interop-")
        with open(f"{self.dir}/zoo.cfg", "w") as config:
            config.write(
                f"tickTime=500\ndataDir={self.dir}/data\n"
                f"clientPort={self.port}\nclientPortAddress=127.0.0.1\n"
                "admin.enableServer=false\n4lw.commands.whitelist=*\n"
            )
        jars = [jar for part in PARTS for jar in sorted(glob.glob(f"/usr/share/java/{part}.jar"))]
        words = ["java", "-Xmx192m", "-XX:+UseSerialGC",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-Dzookeeper.forceSync=no"]
        words += ["-cp", ":".join(jars), "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            f"{self.dir}/zoo.cfg"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait("the server serves", lambda: "Mode:" in self.ask("srvr"))
        # A lock of kazoo's layout makes its parents for good.
        assert attempt(f"zk://127.0.0.1:{self.port}?layout=kazoo", "app/parent") == 0
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def ask(self, question):
        """One of the server's four-letter questions."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as s:
                s.sendall(question.encode())
                return b"".join(iter(lambda: s.recv(65536), b"")).decode()
        except OSError:
            return ""

    @property
    def address(self):
        return f"127.0.0.1:{self.port}/app"

    def url(self, options):
        return f"zk://{self.address}?session_timeout={SESSION}s&{options}"


class Inside:
    """A file that only one may have made: whoever is inside has it."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))

    def __exit__(self, *_):
        os.unlink(self.path)
