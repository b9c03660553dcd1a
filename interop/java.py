"""A Java program that does what it is told, a line at a time."""

import os
import subprocess

from peer import Peer


class Java(Peer):
    def __init__(self, *words):
        words = ["java", "-Dfile.encoding=UTF-8", "-cp", os.environ["CLASSES"], *words]
        super().__init__(words, stderr=subprocess.DEVNULL)
