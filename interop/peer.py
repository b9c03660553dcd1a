"""A program of another library that does what it is told, a line at a time, and answers each line
with the time in ms."""

from harness import PATIENCE, Program


class Peer(Program):
    def __init__(self, words, **options):
        super().__init__(words, encoding="utf-8", **options)
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
