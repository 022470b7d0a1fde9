"""What is said once is said once, and remembering it takes no memory without end."""

from __future__ import annotations

from ckpt_observe.delivery import once
from ckpt_observe.delivery.once import Once
from tests.delivery.conftest import FakeExporter, until


def test_bounded(caplog):
    """Of many kinds a thousand are remembered; each is said."""
    said = Once()
    for number in range(3 * once.MOST):
        said.say(str(number), f"trouble {number}.")
    assert len(said._told) <= once.MOST
    assert all(f"trouble {number}." in caplog.text for number in (0, once.MOST, 3 * once.MOST - 1))


def test_again(caplog):
    """The same trouble is said the first time, however its words change."""
    said = Once()
    for number in range(10):
        said.say("disk", f"full for the {number}. time")
    assert [record.getMessage() for record in caplog.records] == ["ckpt_observe: full for the 0. time"]


def test_fault_with_ever_other_words(world, monkeypatch, caplog):
    """A fault of the delivery's own is one kind of trouble, whatever number or address is in its words: it does not fill the host's log."""
    raised = []
    _, delivery = world(FakeExporter(), start=False)

    def fault():
        raised.append(ValueError(f"fault {len(raised)}"))
        raise raised[-1]

    monkeypatch.setattr(delivery, "_collect", fault)
    delivery.start()
    until(lambda: len(raised) > 3)
    assert caplog.text.count("a fault of its own while collecting") == 1
    monkeypatch.undo()
