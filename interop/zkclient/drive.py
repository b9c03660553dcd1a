"""The articles' ten-thread LockTest on ZkClient beside lockkeeper with layout=plain on the same path; then the example `ten_contenders`."""

import os
import subprocess
import time

from background import in_background
from harness import HOLD, Holder, attempt, case, done, soon, wait
from zookeeper import SESSION, Inside, ZooKeeper


def lock_test(server, inside, turns):
    words = ["java", "-cp", os.environ["CLASSES"], "LockTest", server.address, inside, str(turns)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


with ZooKeeper() as server:
    url, inside = server.url("layout=plain"), f"{server.dir}/inside"
    assert attempt(url, "lock") == 0, "makes the path, for good"
    theirs, turns = lock_test(server, inside, 8), 0
    while theirs.poll() is None:
        ours = Holder(url, "lock").wait_granted()
        with Inside(inside):
            time.sleep(0.005)
        ours.release()
        turns += 1
    lines = theirs.stdout.read().splitlines()
    assert lines[-1] == "done" and not [line for line in lines if line.startswith("error")], lines
    assert len(lines) == 81 and turns > 5, (len(lines), turns)
    print(f"  80 turns of ten threads, and {turns} of ours among them")
    case("ten threads of LockTest and lockkeeper exclude each other, each in its turn")

    theirs = lock_test(server, inside, 1_000_000)
    wait("they work", lambda: os.path.exists(inside))
    ours = Holder(url, "lock")
    killed = time.monotonic()
    theirs.kill()
    theirs.wait()
    granted = in_background(ours)
    granted.join()
    soon("ten killed threads are passed", killed, ours.granted_at, SESSION * 7 / 4 + 1)
    ours.process.kill()
    ours.process.wait()
    if os.path.exists(inside):
        os.unlink(inside)
    theirs = lock_test(server, inside, 1)
    lines = theirs.communicate(timeout=SESSION * 7 / 4 + 20)[0].splitlines()
    assert lines[-1] == "done" and len(lines) == 11, lines
    case("killed holders of either side are passed once their sessions are over")

    example = subprocess.run([os.path.join(os.path.dirname(HOLD), "ten_contenders"), url], capture_output=True, text=True, timeout=60)
    assert example.returncode == 0, example.stderr
    assert "token" in example.stdout
    print("  " + example.stdout.strip().splitlines()[-1])
    case("the example ten_contenders on the same server: ten tasks, ten processes, one lock, rising tokens")
    done()
