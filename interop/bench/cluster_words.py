"""What a word to a waiter costs on a Redis Cluster: PUBLISH, which the bus carries to every node,
beside SPUBLISH, which stays in the shard. In turn on the same nodes, until the subscriber has it
and in processor time of all nodes. Takes a minute; needs redis-server and redis-cli alone."""

import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time

CHANNEL, WORD = "{a}:w", "x" * 120
ROUNDS, ALONE, TOGETHER, AT_ONCE = 7, 1500, 20_000, 100
KINDS = {"PUBLISH": "SUBSCRIBE", "SPUBLISH": "SSUBSCRIBE"}
TICKS = os.sysconf("SC_CLK_TCK")


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = self.socket.makefile("rb")

    def send(self, *words):
        parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
        self.socket.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())

    def read(self):
        line = self.answers.readline().rstrip()
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise RuntimeError(line)
        if kind == b"$":
            return self.answers.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        return rest

    def ask(self, *words):
        self.send(*words)
        return self.read()


def free_port():
    """One whose bus port is free as well."""
    while True:
        with socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1] - 20_000
            if port > 10_000 and bus.connect_ex(("127.0.0.1", port + 10_000)) != 0:
                return port


def processor_us(nodes):
    """Of all nodes, since they started."""
    def one(node):
        with open(f"/proc/{node.pid}/stat") as stat:
            words = stat.read().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) * 1e6 / TICKS

    return sum(map(one, nodes))


def start(place, port):
    place = os.path.join(place, str(port))
    os.mkdir(place)
    return subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir",
        place, "--save", "", "--cluster-enabled", "yes"], stdout=subprocess.DEVNULL)


def together(ports):
    hosts = [f"127.0.0.1:{port}" for port in ports]
    subprocess.run(["redis-cli", "--cluster", "create", *hosts, "--cluster-replicas", "1",
        "--cluster-yes"], check=True, stdout=subprocess.DEVNULL)
    for port in ports:
        while b"cluster_state:ok" not in Connection(port).ask("CLUSTER", "INFO"):
            time.sleep(0.1)


def home(port):
    one = Connection(port)
    slot = int(one.ask("CLUSTER", "KEYSLOT", CHANNEL))
    ranges = one.ask("CLUSTER", "SLOTS")
    return next(int(at[2][1]) for at in ranges if int(at[0]) <= slot <= int(at[1]))


def measure(port, nodes):
    says, hears, told = Connection(port), {}, {kind: ([], []) for kind in KINDS}
    for kind, word in KINDS.items():
        hears[kind] = Connection(port)
        hears[kind].ask(word, CHANNEL)
    for _ in range(ROUNDS):
        for kind, (took, used) in told.items():
            each = []
            for _ in range(ALONE):
                begun = time.perf_counter()
                says.send(kind, CHANNEL, WORD)
                hears[kind].read()
                each.append(1e6 * (time.perf_counter() - begun))
                says.read()
            took.append(statistics.median(each))
            # What is still on the bus is no cost of what follows.
            time.sleep(0.5)
            before = processor_us(nodes)
            for _ in range(TOGETHER // AT_ONCE):
                for _ in range(AT_ONCE):
                    says.send(kind, CHANNEL, WORD)
                for _ in range(AT_ONCE):
                    says.read()
                    hears[kind].read()
            time.sleep(0.5)
            used.append((processor_us(nodes) - before) / TOGETHER)
    return told


def main():
    for masters in (3, 6):
        ports = set()
        while len(ports) < 2 * masters:
            ports.add(free_port())
        place = tempfile.mkdtemp(prefix="lockkeeper-words-")
        nodes = [start(place, port) for port in ports]
        try:
            time.sleep(1)
            together(sorted(ports))
            told = measure(home(min(ports)), nodes)
        finally:
            for node in nodes:
                node.kill()
                node.wait()
            shutil.rmtree(place, ignore_errors=True)
        print(f"{masters} masters with a replica each, load {os.getloadavg()[0]:.1f}")
        for kind, (took, used) in told.items():
            print(f"  {kind}: {statistics.median(took):.0f} us ({min(took):.0f}-{max(took):.0f})"
                f" until it is heard, {statistics.median(used):.0f} us"
                f" ({min(used):.0f}-{max(used):.0f}) of processor time")


main()
