"""Trains in one process and continues in another: forked, because the imports take longer than the training.

`trainer_restart.py DIRECTORY` lets the first process end; `trainer_restart.py DIRECTORY METHOD` kills it in a method of its second save.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import torch
from tiny_trainer import create_trainer
from transformers import Trainer

directory, methods = sys.argv[1], sys.argv[2:]
torch.set_num_threads(1)


def kill_in_second_save(self, *args, **kwargs):
    if self.state.global_step >= 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return getattr(Trainer, methods[0])(self, *args, **kwargs)


def run_in_child(function):
    """Run a function in a child process. Return how it ended: its exit code, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except Exception as error:
            print(type(error).__name__, error, file=sys.stderr)
            sys.exit(1)
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


FirstTrainer = type("FirstTrainer", (Trainer,), dict.fromkeys(methods, kill_in_second_save))
first = run_in_child(lambda: create_trainer(directory, 4, FirstTrainer).train())
second = run_in_child(lambda: create_trainer(directory, 6).train(resume_from_checkpoint=True))
print(json.dumps([first, second]))
