"""Curator's mutex and lockkeeper's on the same server, in turn: how many holds a second, alone
and sixty-four at once."""

import json
import os
import statistics
import subprocess
import sys

from zookeeper import ZooKeeper

THREADS = 64
SECONDS = 5


def curator(server, name, threads):
    words = ["java", "-cp", os.environ["CLASSES"], "Rate", server.address, name, str(threads),
        str(SECONDS)]
    return float(subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, check=True).stdout)


def lockkeeper(server, row):
    words = [os.environ["LOCKKEEPER"], "bench", server.url("layout=curator"), "--json", "--only",
        row, "--seconds", str(SECONDS)]
    lines = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return {figures["bench"]: figures["per_second"] for figures in map(json.loads, lines)}


def main(rounds):
    found = {"uncontended": [], "one-name": [], "one-name-no-handoff": []}
    with ZooKeeper() as server:
        for turn in range(rounds):
            pairs = [("uncontended", 1, lockkeeper(server, "uncontended"),
                curator(server, f"alone-{turn}", 1))]
            pairs.append(("one-name", THREADS, lockkeeper(server, "one-name"),
                curator(server, f"hot-{turn}", THREADS)))
            for _, threads, ours, theirs in pairs:
                for row, rate in ours.items():
                    found[row].append(rate / theirs)
                    print(
                        f"  {row}: {rate:.0f} holds a second, "
                        f"Curator with {threads} threads {theirs:.0f}: {rate / theirs:.2f} times",
                        flush=True,
                    )
    for row, ratios in found.items():
        median, least, most = statistics.median(ratios), min(ratios), max(ratios)
        print(f"{row}: {median:.2f} times Curator's rate ({least:.2f}-{most:.2f})")


main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
