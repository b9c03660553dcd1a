"""What the drivers share: a Redis server of their own, and lockkeeper's example `hold` beside
it."""

import os
import random
import select
import shutil
import socket
import subprocess
import tempfile
import time

HOLD = os.environ["HOLD"]
PATIENCE = 20.0


def free_port():
    """One that no outgoing connection takes before the server has it."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return port


class Server:
    """A redis-server on a free port, gone with the block."""

    def __enter__(self):
        self.port = free_port()
        self.dir = tempfile.mkdtemp(prefix="lockkeeper-interop-")
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
            "no", "--dir", self.dir]
        self.process = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL)
        wait("the server answers", self.answers)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def answers(self):
        """Not another one on this port."""
        return self.cli("PING") == "PONG" and self.process.poll() is None

    def cli(self, *words):
        """One command by redis-cli, as a person would type it."""
        done = subprocess.run(["redis-cli", "-p", str(self.port), *words], capture_output=True,
            text=True)
        return done.stdout.strip()

    def url(self, options):
        return f"redis://127.0.0.1:{self.port}?{options}"


def example(name):
    """One of the library's examples, built beside `hold`."""
    return os.path.join(os.path.dirname(HOLD), name)


class Program:
    """One that does what it is told, a line at a time, and answers each line."""

    def __init__(self, words, **options):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, **options)

    def tell(self, *words):
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()

    def hear(self):
        return self.process.stdout.readline().rstrip("\n")

    def has_said_something(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


class Holder:
    """A process that holds a lock from its first line until its standard input is closed."""

    def __init__(self, url, name, *options):
        self.process = subprocess.Popen([HOLD, url, name, *options], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self.granted_at = None

    def wait_granted(self):
        line = self.process.stdout.readline()
        assert line.startswith("granted"), "never granted"
        self.granted_at = time.monotonic()
        return self

    def release(self):
        released_at = time.monotonic()
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.process.stdout.close()
        return released_at


def attempt(url, name, *options):
    """The exit code of one try: 0 taken and given back, 75 busy."""
    return subprocess.run([HOLD, url, name, "-n", *options], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL).returncode


def wait(what, so):
    end = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.01)


def soon(what, since, until, limit=0.1):
    took = until - since
    assert took < limit, f"{what} took {took * 1000:.0f} ms"
    print(f"  {what}: {took * 1000:.1f} ms")


def soon_mostly(what, took, limit=0.1):
    """Most of several times have to be soon: a busy machine is late now and then, and who only
    looks from time to time is late most times."""
    took = sorted(took)
    shown = ", ".join(f"{one * 1000:.1f}" for one in took)
    assert took[len(took) // 2] < limit, f"{what} took {shown} ms"
    print(f"  {what}: {shown} ms")


PASSED = 0


def case(text):
    global PASSED
    PASSED += 1
    print(f"ok {PASSED} - {text}")


def done():
    print(f"{PASSED} passed, 0 failed")
