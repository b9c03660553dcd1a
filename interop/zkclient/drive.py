"""The articles' two locks on ZkClient beside lockkeeper with layout=plain on the same path:
`/lock/0000000067`, no prefix.

Then the tidy LockTest, whose nodes are `/lock/Lock0000000067`, with prefix=Lock; then the
example `ten_contenders`."""

import os
import subprocess
import threading
import time

from background import in_background
from harness import HOLD, Holder, attempt, case, done, soon, wait
from java import Java
from zookeeper import SESSION, Inside, ZooKeeper

VARIANTS = ["no-second-look", "latch-after-exists"]
REFUSED = 64
# What eighty turns of theirs never take, in seconds.
AMONG_MAX = 60


def ten_threads(server, words, inside, turns):
    words = ["java", "-cp", os.environ["CLASSES"], words[0], server.address, *words[1:], inside,
        str(turns)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def among_ten_threads(server, url, words):
    """Ten threads of theirs, eight turns each, and as many of ours as fit in between.

    Answers False where theirs hung: `latch-after-exists` may miss its wake-up, and then waits
    for ever, ours behind it."""
    inside, turns = f"{server.dir}/inside", 0
    theirs = ten_threads(server, words, inside, 8)
    hung = []
    deadline = threading.Timer(AMONG_MAX, lambda: (hung.append(True), theirs.kill()))
    deadline.start()
    while theirs.poll() is None:
        ours = Holder(url, "lock").wait_granted()
        with Inside(inside):
            time.sleep(0.005)
        ours.release()
        turns += 1
    deadline.cancel()
    deadline.join()
    if hung:
        assert "latch-after-exists" in words, (
            f"ten threads of {words} were not done after {AMONG_MAX} s"
        )
        print(
            "  latch-after-exists missed its wake-up, as SAFETY.md says: "
            f"its threads were ended after {AMONG_MAX} s"
        )
        if os.path.exists(inside):
            os.unlink(inside)
        return False
    lines = theirs.stdout.read().splitlines()
    assert lines[-1] == "done" and not [line for line in lines if line.startswith("error")], lines
    assert len(lines) == 81 and turns > 5, (len(lines), turns)
    print(f"  80 turns of ten threads, and {turns} of ours among them")
    return True


def ten_killed_threads(server, url, words):
    inside = f"{server.dir}/inside"
    theirs = ten_threads(server, words, inside, 1_000_000)
    wait("they work", lambda: os.path.exists(inside))
    ours = Holder(url, "lock")
    killed = time.monotonic()
    theirs.kill()
    theirs.wait()
    in_background(ours).join()
    soon("ten killed threads are passed", killed, ours.granted_at, SESSION * 7 / 4 + 1)
    ours.process.kill()
    ours.process.wait()
    if os.path.exists(inside):
        os.unlink(inside)
    theirs = ten_threads(server, words, inside, 1)
    lines = theirs.communicate(timeout=SESSION * 7 / 4 + 20)[0].splitlines()
    assert lines[-1] == "done" and len(lines) == 11, lines


def one_by_one(server, url, variant):
    peer = Java("Peer", server.address, variant)

    def begins(standing):
        peer.ask("begin")
        wait("its node stands in line", lambda: peer.ask("standing") == str(standing))

    def is_in():
        return peer.ask("is-in") == "true"

    ours = Holder(url, "lock").wait_granted()
    begins(2)
    time.sleep(0.5)
    assert not is_in(), "theirs came in beside ours"
    released = ours.release()
    wait("it is its turn", is_in)
    soon(f"{variant}: woken by our release", released, time.monotonic(), 1)
    assert attempt(url, "lock") == 75, "we must see theirs"
    waiting = Holder(url, "lock")
    granted = in_background(waiting)
    assert waiting.granted_at is None, "ours came in beside theirs"
    released = time.monotonic()
    peer.ask("unlock")
    granted.join()
    soon(f"{variant}: we are woken by its release", released, waiting.granted_at, 1)
    case(f"{variant}: whoever is first, ours or theirs, excludes the other and wakes it")

    begins(2)
    killed = time.monotonic()
    waiting.process.kill()
    waiting.process.wait()
    wait("it is its turn", is_in)
    soon("our killed holder is passed", killed, time.monotonic(), SESSION * 7 / 4 + 1)
    waiting = Holder(url, "lock")
    granted = in_background(waiting)
    killed = time.monotonic()
    peer.kill()
    granted.join()
    soon("its killed holder is passed", killed, waiting.granted_at, SESSION * 7 / 4 + 1)
    waiting.release()
    case(f"{variant}: a killed holder of either side is passed once its session is over")

    # The flaw that no neighbour can mend: a waiter in the middle goes, and whoever stands behind it
    # does not look again.
    peer = Java("Peer", server.address, variant)
    ours = Holder(url, "lock").wait_granted()
    middle = subprocess.Popen([HOLD, url, "lock"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait("ours waits in the middle", lambda: peer.ask("standing") == "2")
    begins(3)
    middle.kill()
    middle.wait()
    wait("the middle is gone", lambda: peer.ask("standing") == "2")
    if variant == "no-second-look":
        wait("it enters beside our holder", is_in)
        case(
            f"{variant}: a waiter in the middle that goes lets theirs in beside ours, "
            "as SAFETY.md says"
        )
    else:
        time.sleep(0.5)
        assert not is_in(), "it looks again"
        case(f"{variant}: a waiter in the middle that goes lets nobody in")
    ours.release()
    wait("it is its turn", is_in)
    peer.ask("unlock")
    peer.end()


def another_prefix(server, url, option):
    """Beside theirs a URL with another prefix is refused, and leaves nothing."""
    peer = Java("Peer", server.address, "no-second-look")
    peer.ask("begin")
    wait("it is in", lambda: peer.ask("is-in") == "true")
    for flags in [[], ["-n"]]:
        said = subprocess.run([HOLD, url, "lock", *flags], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=20)
        assert said.returncode == REFUSED and option in said.stderr, said
    assert peer.ask("standing") == "1", "nothing of ours is left"
    peer.ask("unlock")
    peer.end()
    case("beside theirs another prefix is refused, and the error names the option to give")


with ZooKeeper() as server:
    bare, named = server.url("layout=plain"), server.url("layout=plain&prefix=Lock")
    assert attempt(bare, "lock") == 0, "makes the path, for good"
    for variant in VARIANTS:
        one_by_one(server, bare, variant)
        if among_ten_threads(server, bare, ["Peer", variant]):
            case(f"{variant}: ten threads and lockkeeper exclude each other, each in its turn")
    ten_killed_threads(server, bare, ["Peer", VARIANTS[0]])
    case(
        "ten killed threads, and a holder of ours that is killed, "
        "are passed once their sessions are over"
    )
    another_prefix(server, named, "layout=plain&prefix=")

    among_ten_threads(server, named, ["LockTest"])
    ten_killed_threads(server, named, ["LockTest"])
    case(
        "prefix=Lock: ten threads whose nodes begin with Lock and lockkeeper exclude each other, "
        "killed or not"
    )

    example = subprocess.run([os.path.join(os.path.dirname(HOLD), "ten_contenders"), bare],
        capture_output=True, text=True, timeout=60)
    assert example.returncode == 0, example.stderr
    assert "token" in example.stdout
    print("  " + example.stdout.strip().splitlines()[-1])
    case(
        "the example ten_contenders on the same server: "
        "ten tasks, ten processes, one lock, rising tokens"
    )
    done()
