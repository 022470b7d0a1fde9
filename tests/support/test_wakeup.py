"""A wakeup: never lost, never waits, and safe in a signal handler."""

from __future__ import annotations

import signal
import threading

from ckpt_observe.support.wakeup import Wakeup


def test_wake_a_waiting_thread():
    """A ring ends the wait of another thread."""
    wakeup = Wakeup()
    waiter = threading.Thread(target=wakeup.wait, args=(60,))
    waiter.start()
    wakeup.ring()
    waiter.join(20)
    assert not waiter.is_alive()


def test_rings_before_the_wait_count_once():
    """A ring while nobody waits ends the next wait; several rings end only one."""
    wakeup = Wakeup()
    for _ in range(3):
        wakeup.ring()
    wakeup.wait(60)
    assert not wakeup._silent.acquire(blocking=False)
    wakeup.wait(0)


def test_ring_in_a_signal_handler():
    """A signal handler that rings while its thread rings does not hang, and the ring arrives."""
    wakeup = Wakeup()

    def handle(_number, _frame):
        wakeup.ring()

    previous = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(20_000):
            wakeup.ring()
            wakeup.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
