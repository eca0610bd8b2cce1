"""A task of the toy cluster on a machine of its own: enters a network namespace, and goes on as toy_task.py.

    python tests/in_namespace.py --namespace=NAME --job_name=worker --task_id=0 ...
"""

import ctypes
import os
import pathlib
import runpy
import sys

CLONE_NEWNET = 0x40000000  # Of <linux/sched.h>.


def enter(name: str) -> None:
    """Puts the calling thread, and those that it will start, in the network namespace of this name."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f'/run/netns/{name}', 'rb') as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


if __name__ == '__main__':
    flag = next(argument for argument in sys.argv if argument.startswith('--namespace='))
    sys.argv.remove(flag)
    enter(flag.partition('=')[2])
    runpy.run_path(str(pathlib.Path(__file__).with_name('toy_task.py')), run_name='__main__')
