"""A Java program that does what it is told, a line at a time, and answers each line with the time in ms."""

import os
import select
import subprocess


class Java:
    def __init__(self, *words):
        words = ["java", "-Dfile.encoding=UTF-8", "-cp", os.environ["CLASSES"], *words]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8")
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, *words):
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()

    def hear(self):
        answer, at_ms = self.process.stdout.readline().rstrip("\n").split("\t")
        assert not answer.startswith("error"), answer
        self.at = int(at_ms) / 1000
        return answer

    def has_said_something(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def ask(self, *words):
        self.tell(*words)
        return self.hear()

    def end(self):
        self.process.stdin.close()
        self.process.wait(20)

    def kill(self):
        self.process.kill()
        self.process.wait(20)
