"""Waiting for permits of one semaphore, several at once."""

from background import in_background
from harness import Holder, attempt, case


class OurPermit:
    """One of ours that waits for a permit."""

    def __init__(self, url, name):
        self.holder = Holder(url, name, "--permits", "1/1")
        self.granted = in_background(self.holder)

    def has_it(self):
        return self.holder.granted_at is not None

    def wait(self):
        self.granted.join()

    def give_back(self):
        self.holder.release()


def each_in_its_turn(url, orders, theirs):
    """Waiters of both sides in these orders: an O is ours, any other letter is theirs;
    `theirs(at, name)` is their waiter number `at`."""
    for order in orders:
        name, waiters, at = f"line-{order}", [], 0
        holder = Holder(url, name, "--permits", "1/1").wait_granted()
        for side in order:
            if side == "O":
                waiters.append(OurPermit(url, name))
            else:
                waiters.append(theirs(at, name))
                at += 1
        give_back = holder.release
        for at, waiter in enumerate(waiters):
            assert not any(later.has_it()
                for later in waiters[at:]), f"{order}: one permit, and more than one has it"
            give_back()
            waiter.wait()
            give_back = waiter.give_back
        give_back()
        assert attempt(url, name, "--permits", "1/1") == 0, f"{order}: something was left"
    case("waiters of both on one semaphore: each in its turn, whoever came first")
