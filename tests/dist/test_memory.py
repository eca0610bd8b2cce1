"""What a task frees it keeps. In processes of their own, since malloc's settings hold to a process's end."""

import platform
import subprocess
import sys

import pytest

from dist.memory import keep_freed_memory

# As gRPC does: another thread than the main one takes large buffers, fills them, and frees them all.
FAULTS = """
import ctypes, os, resource, sys, threading
from dist.memory import keep_freed_memory
if sys.argv[1] == 'keep':
    assert keep_freed_memory({})

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    buffers = [ctypes.create_string_buffer(8 << 20) for _ in range(4)]
    del buffers

def steps():
    step()
    before = faults()
    for _ in range(10):
        step()
    print((faults() - before) * os.sysconf('SC_PAGESIZE') >> 20)

thread = threading.Thread(target=steps)
thread.start()
thread.join()
"""


def refilled_mb(how: str) -> int:
    """Megabytes of new pages that a process asked for in ten steps of 32 MB."""
    return int(subprocess.run([sys.executable, '-c', FAULTS, how], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='a C library without mallopt')
def test_freed_memory_is_used_again_without_asking_the_system():
    assert refilled_mb('default') > 100  # Else there is nothing to gain here.
    assert refilled_mb('keep') < 32


@pytest.mark.parametrize('name', ['GLIBC_TUNABLES', 'MALLOC_ARENA_MAX'])
def test_settings_of_the_environment_are_left_alone(name):
    assert not keep_freed_memory({name: '1'})
