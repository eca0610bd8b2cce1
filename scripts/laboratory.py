"""Cuts, heals, slows and moves machines of a cluster that runs with `launch_local.py --machines`, and shows them.

    python scripts/laboratory.py --log_directory=run2/logs status          who is where, and what crosses its cable
    python scripts/laboratory.py --log_directory=run2/logs cut worker1     nothing leaves or reaches that machine
    python scripts/laboratory.py --log_directory=run2/logs cut worker0-ps1 these two do not reach one another
    python scripts/laboratory.py --log_directory=run2/logs heal worker1
    python scripts/laboratory.py --log_directory=run2/logs slow ps0=100mbit
    python scripts/laboratory.py --log_directory=run2/logs move worker1    it is killed and gets another address
    python scripts/laboratory.py --log_directory=run2/logs kill worker1    it is killed and started again

--log_directory is that of the launcher: without the flag it is logs in --train_dir. Exit codes: 0, or 1 when no cluster
answers, 2 for a command that is none.
"""

from collections.abc import Sequence

import common
from dist.launch import control
from inception_mg.errors import FlagError


def main(words: Sequence[str]) -> None:
    folder = common.flags.FLAGS.log_directory
    if not folder:
        raise FlagError('--log_directory is empty: name that of launch_local.py, logs in its --train_dir by default')
    if not words or words[0] not in control.COMMANDS:
        raise FlagError(f'{words[0] if words else "nothing"} is no command: use one of {", ".join(control.COMMANDS)}')
    print(control.ask(folder, ' '.join(words)))


if __name__ == '__main__':
    common.flags.DEFINE_string('log_directory', '', 'Folder with the logs of a cluster that runs with --machines.')
    common.run(main, arguments='COMMAND')
