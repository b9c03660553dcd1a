"""Apache Curator and lockkeeper with layout=curator: mutex, read-write, semaphore, barrier,
election, revocation, both ways."""

import time

from background import in_background
from both_ways import both_ways
from harness import PATIENCE, Holder, Program, attempt, case, done, example, soon
from java import Java
from killed import either_side
from permits import each_in_its_turn
from zookeeper import SESSION, ZooKeeper


def peer(server):
    return Java("Peer", server.address, str(int(SESSION * 1000)))


def java_said_yes(java):
    assert java.hear() == "true"


class Converting(Program):
    """A hold of ours on a read-write lock that becomes another on demand."""

    def __init__(self, url, name, begins):
        super().__init__([example("convert"), url, name, begins])
        assert self.hear() == {"write": "writing"}.get(begins, begins)


class CuratorsPermit:
    """One of Curator's that waits for a permit."""

    def __init__(self, java, name):
        self.java, self.name, self.has = java, name, False
        java.tell("permit", "15", name, "1")
        time.sleep(0.5)

    def has_it(self):
        return self.has or self.java.has_said_something()

    def wait(self):
        assert self.java.hear() == "true"
        self.has = True

    def give_back(self):
        self.java.ask("release", "", self.name)


with ZooKeeper() as server:
    java, url = peer(server), server.url("layout=curator")
    for kind, flags in {"mutex": (), "write": ("-w",)}.items():
        both_ways(java, "Curator", kind, url, flags, kind, 0.5)

    java.ask("lock", "mutex", "order")
    first = Holder(url, "order")
    first_granted = in_background(first)
    second = peer(server)
    second.tell("lock", "mutex", "order")
    time.sleep(0.5)
    third = Holder(url, "order")
    third_granted = in_background(third)
    java.ask("unlock", "mutex", "order")
    first_granted.join()
    assert third.granted_at is None
    first.release()
    assert second.hear() == "true"
    assert third.granted_at is None, "first come, first served"
    second.ask("unlock", "mutex", "order")
    third_granted.join()
    third.release()
    case("one line for both, in the order in which they came")

    assert java.ask("try", "read", "shared") == "true"
    reader = Holder(url, "shared", "-s").wait_granted()
    assert attempt(url, "shared", "-w") == 75
    java.ask("unlock", "read", "shared")
    assert java.ask("try", "write", "shared") == "false"
    writer = Holder(url, "shared", "-w")
    writing = in_background(writer)
    assert java.ask("try", "read", "shared") == "false", "a reader waits behind a waiting writer"
    reader.release()
    writing.join()
    writer.release()
    java.ask("lock", "write", "shared")
    java.ask("lock", "read", "shared")
    waiting = Holder(url, "shared", "-w")
    waits = in_background(waiting)
    java.ask("unlock", "write", "shared")
    time.sleep(0.3)
    assert waiting.granted_at is None, "the writer before it still reads"
    java.ask("unlock", "read", "shared")
    waits.join()
    waiting.release()
    case(
        "readers of both share, keep writers of both out, "
        "and a writer of Curator's may become a reader"
    )

    shared = server.url("layout=curator&semaphore=shared")
    one = Holder(shared, "gpu", "--permits", "1/2").wait_granted()
    assert java.ask("permit", "0", "gpu", "2") == "true"
    assert java.ask("permit", "1", "gpu", "2") == "false"
    assert attempt(shared, "gpu", "--permits", "1/2") == 75
    waiting = Holder(shared, "gpu", "--permits", "1/2")
    waits = in_background(waiting)
    released = time.monotonic()
    java.ask("release", "", "gpu")
    waits.join()
    soon("a permit that Curator gave back", released, waiting.granted_at, 0.5)
    java.tell("permit", "15", "gpu", "2")
    time.sleep(0.5)
    one.release()
    assert java.hear() == "true"
    waiting.release()
    java.ask("release", "", "gpu")
    case("permits are counted together, and wake each other")

    each_in_its_turn(shared, ["CO", "OC", "COCO", "OOCC"], lambda at,
        name: CuratorsPermit([second, java][at], name))

    java.ask("close", "", "barrier")
    waiting = Holder(url, "barrier", "--wait")
    waits = in_background(waiting)
    assert waiting.granted_at is None
    java.ask("open", "", "barrier")
    waits.join()
    waiting.release()
    closed = Holder(url, "barrier", "--latch").wait_granted()
    java.tell("await", "", "barrier")
    time.sleep(0.3)
    closed.release()
    assert java.hear() == "true"
    case("Curator's barrier is a latch of one, and a latch is its barrier")

    for at in range(3):
        name, last_out = f"double-{at}", None
        java.tell("enter", "", name, "3")
        ours = Holder(url, name, "--double", "3")
        entering = in_background(ours)
        assert ours.granted_at is None and not java.has_said_something(), "two of three are in"
        assert second.ask("enter", "", name, "3") == "true"
        assert java.hear() == "true"
        entering.join()
        leaving = ["java", "second", "ours"]
        leaving = leaving[at:] + leaving[:at]
        for member in leaving:
            if member == "ours":
                ours.process.stdin.close()
            else:
                {"java": java, "second": second}[member].tell("exit", "", name)
            if member != leaving[-1]:
                time.sleep(0.3)
                # Curator's own members may go before the last one has finished: theirs ask only for
                # the first by name.
                assert ours.process.poll() is None, "somebody has not finished"
        assert java.hear() == "true" and second.hear() == "true"
        assert ours.process.wait(PATIENCE) == 0
        ours.process.stdout.close()
    java.tell("enter", "", "died", "2")
    ours = Holder(url, "died", "--double", "2").wait_granted()
    assert java.hear() == "true"
    java.tell("exit", "", "died")
    killed = time.time()
    ours.process.kill()
    ours.process.wait()
    assert java.hear() == "true"
    soon("our member killed: Curator's goes", killed, java.at, SESSION * 7 / 4 + 1)
    case(
        "a double barrier: nobody begins before all are in, "
        "nobody of ours goes before all have finished"
    )

    ours = Holder(url, "asked", "--until-asked").wait_granted()
    java.ask("revoke", "mutex", "asked")
    assert ours.process.wait(PATIENCE) == 0, "ours hears Curator, and lets go"
    java.ask("revocable", "", "asked")
    java.ask("lock", "mutex", "asked")
    assert attempt(url, "asked", "--ask") == 0
    assert java.ask("asked", "", "asked") == "true", "Curator hears ours"
    java.ask("unlock", "mutex", "asked")
    assert attempt(url, "asked", "--ask") == 75, "nobody holds it"
    case("each asks the other's holder to let go, and is heard")

    upgradable = Converting(url, "convert", "upgradable")
    assert java.ask("try", "read", "convert") == "true"
    upgradable.tell("up")
    time.sleep(0.3)
    assert not upgradable.has_said_something(), "Curator reads"
    assert second.ask("try", "read",
        "convert") == "false", "an upgrade that waits keeps new readers out"
    java.ask("unlock", "read", "convert")
    assert upgradable.hear() == "writing"
    assert java.ask("try", "read", "convert") == java.ask("try", "write", "convert") == "false"
    java.tell("lock", "write", "convert")
    time.sleep(0.5)
    upgradable.tell("back")
    assert upgradable.hear() == "upgradable"
    upgradable.tell("up")
    assert upgradable.hear() == "writing", "before a writer that waits"
    upgradable.tell("back")
    assert upgradable.hear() == "upgradable"
    upgradable.tell("down")
    assert upgradable.hear() == "reading"
    time.sleep(0.3)
    assert not java.has_said_something(), "we still read"
    upgradable.end()
    assert java.hear() == "true"
    java.ask("unlock", "write", "convert")
    writer = Converting(url, "convert", "write")
    java.tell("lock", "write", "convert")
    time.sleep(0.5)
    second.tell("lock", "read", "convert")
    time.sleep(0.5)
    writer.tell("down")
    assert writer.hear() == "reading"
    time.sleep(0.3)
    assert not java.has_said_something() and not second.has_said_something(), (
        "a writer waits for us, and a reader for it"
    )
    writer.end()
    assert java.hear() == "true" and not second.has_said_something()
    java.ask("unlock", "write", "convert")
    assert second.hear() == "true"
    second.ask("unlock", "read", "convert")
    case("upgrades and downgrades beside Curator's readers and writers that hold and wait")

    ours = Holder(url, "leader", "--elect", "rust").wait_granted()
    java.ask("stand", "java", "leader")
    assert java.ask("leader", "", "leader") == "rust"
    java.tell("lead", "", "leader")
    ours.release()
    assert java.hear() == "true"
    waiting = Holder(url, "leader", "--elect", "rust")
    waits = in_background(waiting)
    assert java.ask("leader", "", "leader") == "java"
    java.ask("leave", "", "leader")
    waits.join()
    waiting.release()
    case("one leader among both, seen by its id")

    def second_waits():
        second.tell("lock", "mutex", "dead")
        time.sleep(0.5)
        return lambda: java_said_yes(second)

    java.ask("lock", "mutex", "dead")
    either_side("Curator", "", Holder(url, "dead"), java.kill, second_waits, 1)
    second.ask("unlock", "mutex", "dead")
    case("a killed holder of either side is passed once its session is over")
    second.end()
    done()
