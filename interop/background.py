"""Waiting for a grant beside the driver's own work."""

import threading
import time


def in_background(holder):
    """Starts to wait, and gives the other side the time to see it in the line."""
    thread = threading.Thread(target=holder.wait_granted)
    thread.start()
    time.sleep(0.5)
    return thread
