"""Real clusters that train a narrow Inception v3: cluster_harness.py with scripts/train_distributed.py."""

import pathlib
import re

from cluster_harness import ToyCluster

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / 'scripts' / 'train_distributed.py'
STATUS = re.compile(r'step +(\d+)/\d+ ')
SMALL = {'width': 0.05, 'image_size': 75, 'batch_size': 4, 'batch_norm_decay': 0.9, 'moving_average_decay': 0.9,
         'initial_learning_rate': 0.01, 'num_preprocess_threads': 1, 'num_readers': 1, 'log_every_steps': 1,
         'data_seed': 1}


class TrainingCluster(ToyCluster):
    """The tasks of one training. Its lines carry no time: here `at` and `since` count lines."""

    script = SCRIPT

    def __init__(self, folder: pathlib.Path, data_dir: str, num_ps: int = 1, num_workers: int = 2, **flags):
        environ = flags.pop('environ', None)
        super().__init__(folder, num_ps, num_workers, environ, **{**SMALL, 'data_dir': data_dir, **flags})

    def lines(self, task: str) -> list[tuple[float, str]]:
        """(number, text) of the task's lines so far, over all its lives."""
        return list(enumerate(self.text(task).splitlines()))

    def count(self, task: str) -> int:
        """How many lines the task has written: the `since` of what comes next."""
        return len(self.lines(task))

    def steps(self, task: str, since: float = 0.0) -> list[int]:
        """Global steps of the status lines, in order."""
        found = (STATUS.match(text) for at, text in self.lines(task) if at >= since)
        return [int(match[1]) for match in found if match]

    def wait_training(self, lines: int, since: float = 0.0, limit: float = 240.0) -> None:
        """Waits until the chief has written so many status lines after line `since`."""
        self._wait('worker 0', lambda: len(self.steps('worker 0', since)) >= lines or None,
                   f'write {lines} status lines', limit)
