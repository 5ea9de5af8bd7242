from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from leasehold.ports import ERROR_CHARS_MAX, error_text, traced_text
from leasehold.testing.check_dead_letters import any_group, any_letter


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not me")


def test_an_error_is_told_by_type_and_message() -> None:
    assert error_text(ValueError("no such sensor")) == "ValueError: no such sensor"
    assert error_text(KeyError("home")) == "KeyError: 'home'"
    assert error_text(TimeoutError()) == "TimeoutError"
    assert error_text("the instance died") == "the instance died"


def test_an_error_that_cannot_be_shown_is_told_by_its_type() -> None:
    assert error_text(Unprintable()) == "Unprintable: (its message cannot be shown)"


@given(st.text(st.characters(), min_size=ERROR_CHARS_MAX - 20, max_size=ERROR_CHARS_MAX + 20))
def test_any_error_fits_every_store(message: str) -> None:
    text = error_text(ValueError(message))
    assert text.startswith("ValueError: ")
    assert len(text) <= ERROR_CHARS_MAX
    assert "\0" not in text
    assert text.encode()
    assert text.endswith(" …") == (len("ValueError: " + message) > ERROR_CHARS_MAX)


def test_a_long_error_says_that_it_was_cut() -> None:
    assert error_text("x" * ERROR_CHARS_MAX) == "x" * ERROR_CHARS_MAX
    assert error_text("x" * ERROR_CHARS_MAX + "x") == "x" * (ERROR_CHARS_MAX - 2) + " …"


def test_surrogates_and_nuls_are_replaced() -> None:
    assert error_text(ValueError("a\0b\udc80c")) == "ValueError: a\N{REPLACEMENT CHARACTER}b?c"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except type(error) as found:
        return found


def test_a_traceback_follows_the_error_and_names_its_cause() -> None:
    letter = any_letter(any_group(), 4)
    text = traced_text(raised(KeyError("home"), raised(ValueError("no number"))))
    letter = replace(letter, error=text)
    assert letter.reason == "KeyError: 'home'"
    assert text.count("Traceback (most recent call last):\n  File ") == 2
    assert "in raised\n    raise error from cause" in text
    assert "because of ValueError: no number\nTraceback" in text


def test_an_endless_traceback_keeps_its_end() -> None:
    def deeper(depth: int) -> None:
        if depth:
            exec("deeper(depth - 1)", {"deeper": deeper, "depth": depth})  # no two frames alike
        raise ValueError("at the bottom")

    try:
        deeper(200)
    except ValueError as error:
        error.__cause__ = error  # in a circle
        text = traced_text(error)
    assert len(text) < 40_000
    assert "\n  …\n" in text
    assert text.rstrip().endswith('raise ValueError("at the bottom")')


def test_a_letter_gives_the_event_as_the_handler_had_it() -> None:
    letter = any_letter(any_group(), 4, partition_key="H1", properties={"kind": "door"})
    event = letter.event
    assert (event.body, event.sequence, event.offset) == (letter.body, 4, letter.token)
    assert (event.partition, event.partition_key) == ("7", "H1")
    assert (event.properties, event.enqueued_at) == ({"kind": "door"}, letter.enqueued_at)
