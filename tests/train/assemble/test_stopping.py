"""The wish to stop: from a signal, or from the clock."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from mt_train.assemble.stopping import SIGNALS, StopNow, Stopper


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_a_wish_and_the_second_one_the_systems_own(number: int) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    stopper = Stopper()
    with stopper.listen():
        stopper.preparing = False
        assert not stopper.should_stop()
        os.kill(os.getpid(), number)
        assert stopper.reason == signal.Signals(number).name
        assert {signal.getsignal(each) for each in SIGNALS} == {signal.SIG_DFL}
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_signal_while_preparing_ends_the_work_at_once_whatever_catches_exceptions() -> None:
    stopper = Stopper()

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal was not heard")
        except Exception as error:  # as a broad handler of some library would
            raise AssertionError("caught") from error

    with stopper.listen(), pytest.raises(StopNow):
        work()


def test_the_clock_asks_to_stop_after_its_minutes() -> None:
    now = 100.0
    stopper = Stopper(0.5, clock=lambda: now)
    assert not stopper.should_stop()
    now = 129.9
    assert not stopper.should_stop()
    now = 130.0
    assert stopper.reason == "train.max_minutes=0.5"


def test_outside_the_main_thread_only_the_clock_counts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with Stopper().listen():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert seen == [before]
