# check_rows_sink.py
from contextlib import contextmanager
from types import SimpleNamespace

from rows_sink import RowsSink

from leasehold.errors import SinkUnavailable
from leasehold.testing.check_sink import check_sink


class RowsUnderTest:
    """What the suite needs to know of the sink."""

    lost_answers = {"answer lost": SinkUnavailable("no answer")}  # noqa: RUF012

    def __init__(self, folder, kind=RowsSink):
        self.url, self.kind, self.commit = f"rows://{folder}/rows.db", kind, kind.commit

    def open(self):
        return self.kind(self.url)

    def frame(self, rows):
        return SimpleNamespace(toArrow=lambda: rows)  # all that the sink uses of a DataFrame

    def rows(self):
        return self.open().rows()

    @contextmanager
    def commits(self, around):
        def commit(*given):
            made = []
            around(lambda: made.append(self.commit(*given)) or made[0])
            return made[0]

        before, self.kind.commit = self.kind.commit, commit
        try:
            yield
        finally:
            self.kind.commit = before


if __name__ == "__main__":
    from tempfile import mkdtemp

    check_sink(lambda: RowsUnderTest(mkdtemp()))
