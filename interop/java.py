"""A Java program that does what it is told, a line at a time, and answers each line with the
time in ms."""

import os
import subprocess

from harness import PATIENCE, Program


class Java(Program):
    def __init__(self, *words):
        words = ["java", "-Dfile.encoding=UTF-8", "-cp", os.environ["CLASSES"], *words]
        super().__init__(words, stderr=subprocess.DEVNULL, encoding="utf-8")
        assert super().hear() == "ready"

    def hear(self):
        answer, at_ms = super().hear().split("\t")
        assert not answer.startswith("error"), answer
        self.at = int(at_ms) / 1000
        return answer

    def ask(self, *words):
        self.tell(*words)
        return self.hear()

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)
