"""Waiting for permits of one semaphore, several at once."""

from background import in_background
from harness import Holder


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
