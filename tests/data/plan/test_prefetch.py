import threading
import time

import pytest

from tfm.data.plan.order import Prefetch


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_steps_come_in_order_and_are_made_ahead():
    made = []

    def make(step):
        made.append(step)
        return step * 10

    with Prefetch(make, 3, 8) as batches:
        assert len(threads()) == 1
        assert batches.next() == 30
        until = time.monotonic() + 5
        while len(made) < 4 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.05)
        assert made == [3, 4, 5, 6]  # two wait, one more is in the thread's hand
        assert [batches.next() for _ in range(4)] == [40, 50, 60, 70]
        with pytest.raises(IndexError, match="no batch after the last step"):
            batches.next()
    assert not threads()


def test_an_error_comes_where_the_batch_would():
    def make(step):
        if step == 2:
            raise ValueError("row 17 is broken")
        return step

    with Prefetch(make, 0, 10) as batches:
        assert [batches.next(), batches.next()] == [0, 1]
        with pytest.raises(ValueError, match="row 17 is broken"):
            batches.next()
    assert not threads()


def test_waiting_is_measured():
    with Prefetch(lambda step: time.sleep(0.05 * (step == 0)), 0, 3) as batches:
        batches.next()
        assert batches.waited > 0.03
        time.sleep(0.1)
        before = batches.waited
        batches.next()
        assert batches.waited - before < 0.02


def test_closing_does_not_wait_for_the_rest():
    with Prefetch(lambda step: step, 0, 10**9):  # hours, if it waited
        pass
    assert not threads()
