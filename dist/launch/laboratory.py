"""Several machines on one: network namespaces with addresses and names, joined by cables that can be cut.

    with Laboratory(['ps0', 'worker0', 'worker1'], link='1gbit', ps_link='100mbit') as laboratory:
        process = laboratory.start('worker0', ['python', 'task.py'], log, os.environ)
        laboratory.cut('worker1')               # Nothing leaves or reaches it; no connection is closed.
        laboratory.heal('worker1')
        laboratory.cut('worker0', 'ps0')        # These two do not reach one another; all others do.
        laboratory.slow('ps0', '10mbit')
        laboratory.move('worker1')              # Another address under the same name.
        sent, received = laboratory.bytes('ps0')

A machine is a sleeping process in a network and a host name namespace of its own. A veth pair, its cable, joins it to a
bridge, the switch, in a namespace that this machine's network knows nothing of; both ends of a cable are limited by
`tc ... tbf`. The machines share one /etc/hosts, which names them all and changes in place, and see this machine's
files. Nothing has a name outside: when the owner of a Laboratory ends, by whatever, the sleepers end, and the kernel
removes the rest. Without root it works in a user namespace, where the system allows that; the tasks then take
themselves for root, and their files belong to the user who started them.

Packets that are not delivered are lost without a word, as between machines that a router joins: nobody is told "no
route to host". Imports no TensorFlow.
"""

import ctypes
import dataclasses
import ipaddress
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence

from inception_mg.errors import EXIT_FAILED, FlagError, UserError

PORT = 2222  # Every machine has an address of its own, so all tasks can have the same port.
NETWORKS = {False: '10.77.0.0/16', True: 'fd00:77::/64'}
TOOLS = ('unshare', 'nsenter', 'setpriv', 'mount', 'ip', 'tc')
# Enters a namespace, says so, and lives until whoever holds the other end of its input is gone.
SLEEPER = ("import socket, sys\nsys.argv[1:] and socket.sethostname(sys.argv[1])\n"
           "print('here', flush=True)\nsys.stdin.read()")
MIN_BURST = 128 << 10  # Bytes: below two of the kernel's largest packets it would have to cut all of them up.


def parse_rate(text: str, flag: str = 'link') -> int:
    """Bits per second of '100mbit', '1gbit' or '2.5gbit'; 0, no limit, of ''. Raises FlagError naming the flag."""
    match = re.fullmatch(r'(\d+(?:\.\d+)?)(k|m|g)bit', text.strip().lower())
    rate = int(float(match[1]) * {'k': 1e3, 'm': 1e6, 'g': 1e9}[match[2]]) if match else 0
    if text.strip() and rate < 8000:
        raise FlagError(f'--{flag}={text} is not a speed like 100mbit or 1gbit')
    return rate


@dataclasses.dataclass
class Machine:
    """One machine: its number, its present address, its cable's speed in bits per second (0: no limit), and whether
    the cable is cut; pid: of the sleeper whose namespaces it consists of."""

    name: str
    number: int
    address: str
    rate: int
    sleeper: subprocess.Popen
    cut: bool = False

    @property
    def pid(self) -> int:
        return self.sleeper.pid

    @property
    def port(self) -> str:
        """The bridge's end of its cable."""
        return f'port{self.number}'

    @property
    def hardware(self) -> str:
        return f'02:00:00:00:{self.number >> 8:02x}:{self.number & 255:02x}'


class Laboratory:
    """Machines by name, on one switch. A context manager; may be used by several threads.

    link, ps_link: how fast the cables are, such as '100mbit' ('': no limit); ps_link is that of the machines whose
    names begin with 'ps'. ipv6: they have IPv6 addresses and no others. UserError, in one line, where the system has
    not what it takes.
    """

    def __init__(self, machines: Sequence[str], link: str = '', ps_link: str = '', ipv6: bool = False):
        self._rates = parse_rate(link), parse_rate(ps_link, 'ps_link') or parse_rate(link)
        self._addresses = ipaddress.ip_network(NETWORKS[ipv6])
        self._wanted, self._used = list(machines), 0
        self._machines: dict[str, Machine] = {}
        self._aliases: dict[str, str] = {}
        self._parted: set[frozenset[str]] = set()
        self._lock = threading.RLock()
        self._switch: subprocess.Popen | None = None
        self._own_user = False
        self._hosts = -1

    def __enter__(self):
        missing = [tool for tool in TOOLS if not shutil.which(tool)]
        if missing:
            raise UserError(f'machines of their own need {", ".join(TOOLS)}; this system has no {missing[0]} '
                            '(they are in the packages util-linux, mount and iproute2)')
        try:
            self._open_switch()
            for name in self._wanted:
                self._add(name, self._rates[name.startswith('ps')])
            self._introduce()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self) -> None:
        """Removes all. Processes that still run in a machine are ended by the kernel only when their starter ends."""
        sleepers = [machine.sleeper for machine in self._machines.values()]
        for sleeper in [*sleepers, *([self._switch] if self._switch else [])]:
            sleeper.kill()
            sleeper.wait()
            sleeper.stdin.close()
            sleeper.stdout.close()
        self._machines, self._switch = {}, None
        if self._hosts >= 0:
            os.close(self._hosts)
            self._hosts = -1

    def _open_switch(self) -> None:
        reasons = []
        for user in ([[]] if os.geteuid() == 0 else []) + [['--user', '--map-root-user']]:
            self._switch, reason = self._sleep([shutil.which('unshare'), *user, '--mount', '--net', '--uts'])
            self._own_user = bool(user)
            if not reason:
                break
            reasons.append(reason)
        else:
            raise UserError(f'machines of their own need namespaces, and this system refuses them ({reasons[-1]}): '
                            'run this as root, or let users have them (sysctl user.max_user_namespaces, '
                            'kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; a '
                            'container must be allowed to as well)')
        with tempfile.NamedTemporaryFile() as file:  # Its name goes when it is mounted: nothing can be left behind.
            os.chmod(file.name, 0o644)
            self._hosts = os.open(file.name, os.O_RDWR)
            self._inside(self._switch.pid, ['mount', '--bind', file.name, '/etc/hosts'])
        self._inside(self._switch.pid, ['ip', '-batch', '-'], [
            'link set lo up', 'link add name switch type bridge', 'link set switch up'])

    def _sleep(self, command: Sequence[str], *arguments: str) -> tuple[subprocess.Popen, str]:
        """Starts a sleeper behind `command`; returns it, and if it is none, why."""
        sleeper = subprocess.Popen([*command, sys.executable, '-I', '-S', '-c', SLEEPER, *arguments], text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True)
        with sleeper.stderr:
            if sleeper.stdout.readline():
                return sleeper, ''
            return sleeper, (sleeper.stderr.read().strip().splitlines() or ['no reason given'])[-1]

    def namespaces(self, name: str) -> list[str]:
        """The files of the machine's namespaces in the order in which they are to be entered, for ForkServer.start."""
        kinds = [*(['user'] if self._own_user else []), 'mnt', 'net', 'uts']
        return [f'/proc/{self.machine(name).pid}/ns/{kind}' for kind in kinds]

    def _enter(self, pid: int) -> list[str]:
        """What to write before a command so that it runs in the namespaces of the sleeper `pid`."""
        user = ['--user', '--preserve-credentials'] if self._own_user else []
        return [shutil.which('nsenter'), f'--target={pid}', *user, '--mount', '--net', '--uts', '--wd', '--']

    def _inside(self, pid: int, command: Sequence[str], lines: Iterable[str] = ()) -> str:
        """Runs one short command in the namespaces of a sleeper; UserError with its own words if it fails."""
        done = subprocess.run([*self._enter(pid), *command], input=''.join(f'{line}\n' for line in lines), text=True,
                              capture_output=True)
        if done.returncode:
            raise UserError(f'`{" ".join(command)}` in a machine of the laboratory: '
                            f'{" ".join(done.stderr.split()) or f"exit code {done.returncode}"}')
        return done.stdout

    @property
    def names(self) -> list[str]:
        """Of all machines, in the order in which they were added."""
        return list(self._machines)

    def machine(self, name: str) -> Machine:
        """The machine of that name; FlagError if there is none."""
        if name not in self._machines:
            raise FlagError(f'there is no machine {name}: there are {", ".join(self._machines)}')
        return self._machines[name]

    def add(self, name: str, rate: str = '') -> Machine:
        """One more machine, at the speed `rate` ('': that of the others)."""
        with self._lock:
            machine = self._add(name, parse_rate(rate) or self._rates[name.startswith('ps')])
            self._introduce()
            return machine

    def remove(self, name: str) -> None:
        """Takes a machine away, with its address and name. Its processes must have ended."""
        with self._lock:
            machine = self._machines.pop(self.machine(name).name)
            self._inside(self._switch.pid, ['ip', 'link', 'del', machine.port])
            machine.sleeper.kill()
            machine.sleeper.wait()
            machine.sleeper.stdin.close()
            machine.sleeper.stdout.close()
            self._parted = {pair for pair in self._parted if name not in pair}
            self._write_hosts()

    def _add(self, name: str, rate: int) -> Machine:
        if name in self._machines:
            raise FlagError(f'there are two machines {name}')
        number = max((machine.number for machine in self._machines.values()), default=0) + 1
        sleeper, reason = self._sleep([*self._enter(self._switch.pid), 'unshare', '--net', '--uts'], name)
        if reason:
            raise UserError(f'the laboratory cannot make the machine {name}: {reason}')
        machine = self._machines[name] = Machine(name, number, self._new_address(), rate, sleeper)
        self._inside(self._switch.pid, ['ip', '-batch', '-'], [
            f'link add name {machine.port} type veth peer name eth0 address {machine.hardware} netns {sleeper.pid}',
            f'link set {machine.port} master switch up'])
        self._inside(sleeper.pid, ['ip', '-batch', '-'], [
            'link set lo up', 'link set eth0 up', f'addr add {self._with_length(machine.address)} dev eth0'])
        self._limit(machine)
        return machine

    def _new_address(self) -> str:
        self._used += 1
        return str(self._addresses[self._used])

    def _with_length(self, address: str) -> str:
        return f'{address}/{self._addresses.prefixlen}' + ' nodad' * (self._addresses.version == 6)

    def _introduce(self, *machines: Machine) -> None:
        """Tells `machines` (all by default) the hardware addresses of all, so that nobody has to ask and be told that
        there is no answer; and all names. Of one from which it is cut a machine is told its own hardware address: the
        switch drops what would leave by the cable by which it came."""
        for machine in machines or self._machines.values():
            self._inside(machine.pid, ['ip', '-batch', '-'], [
                f'neigh replace {other.address} dev eth0 nud permanent lladdr '
                + (machine if frozenset((machine.name, other.name)) in self._parted else other).hardware
                for other in self._machines.values() if other is not machine])
        self._write_hosts()

    def _write_hosts(self) -> None:
        lines = ['127.0.0.1 localhost', '::1 localhost ip6-localhost ip6-loopback',
                 *(f'{self.address(name)} {name}' for name in {**self._machines, **self._aliases})]
        text = ''.join(f'{line}\n' for line in lines).encode()
        os.pwrite(self._hosts, text, 0)
        os.ftruncate(self._hosts, len(text))

    def address(self, name: str) -> str:
        """The address that a name stands for now."""
        return self.machine(self._aliases.get(name, name)).address

    def listed(self, name: str, by_address: bool = False) -> str:
        """What a host list calls the machine: 'worker0:2222', or with its present address '[fd00:77::2]:2222'."""
        host = self.machine(name).address if by_address else name
        return f'[{host}]:{PORT}' if ':' in host else f'{host}:{PORT}'

    def point(self, name: str, machine: str) -> None:
        """From now on the name means that machine, as when a cluster's manager starts a task elsewhere while the
        machine that had the name lives on unseen. A machine's own name gives the name back to it."""
        with self._lock:
            self._aliases[name] = self.machine(machine).name
            if name == machine:
                del self._aliases[name]
            self._write_hosts()

    def cut(self, name: str, other: str = '') -> None:
        """Cuts the machine's cable, or with `other` only the way between these two; connections are not closed."""
        machine, peer = self.machine(name), self.machine(other) if other else None
        with self._lock:
            if peer is None:
                machine.cut = True
                self._inside(self._switch.pid, ['ip', 'link', 'set', machine.port, 'nomaster'])
                return
            self._parted.add(frozenset((name, other)))
            self._introduce(machine, peer)

    def heal(self, name: str, other: str = '') -> None:
        """Undoes `cut`; without `other` all that was cut of this machine."""
        machine, peer = self.machine(name), self.machine(other) if other else None
        with self._lock:
            if peer is None:
                machine.cut = False
                self._inside(self._switch.pid, ['ip', 'link', 'set', machine.port, 'master', 'switch'])
            healed = {pair for pair in self._parted if name in pair and (not other or other in pair)}
            self._parted -= healed
            if healed:
                self._introduce(*(self._machines[one] for one in set().union(*healed)))

    def cuts(self, name: str) -> list[str]:
        """What the machine is cut from: [] for nothing, ['all'], or names."""
        if self.machine(name).cut:
            return ['all']
        return sorted(other for pair in self._parted if name in pair for other in pair - {name})

    def slow(self, name: str, rate: str) -> None:
        """Sets the speed of the machine's cable in both directions; '' is as fast as it can be."""
        machine = self.machine(name)
        machine.rate = parse_rate(rate, f'slow:{name}')
        with self._lock:
            self._limit(machine)

    def _limit(self, machine: Machine) -> None:
        for pid, device in ((machine.pid, 'eth0'), (self._switch.pid, machine.port)):
            burst = max(MIN_BURST, machine.rate // 8 // 200)  # Bytes that pass at once: 5 ms of the speed.
            limit = ['replace', 'dev', device, 'root', 'tbf', 'rate', f'{machine.rate}bit', 'burst', f'{burst}b',
                     'latency', '50ms'] if machine.rate else ['replace', 'dev', device, 'root', 'pfifo']
            self._inside(pid, ['tc', 'qdisc', *limit])

    def move(self, name: str) -> str:
        """Gives the machine another address under the same name, and returns it. What still holds connections of the
        old address hears nothing more of them: end the machine's processes before, as a pod's are."""
        machine = self.machine(name)
        with self._lock:
            old, machine.address = machine.address, self._new_address()
            self._inside(machine.pid, ['ip', '-batch', '-'], [
                f'addr del {old}/{self._addresses.prefixlen} dev eth0',
                f'addr add {self._with_length(machine.address)} dev eth0'])
            self._introduce()
        return machine.address

    def bytes(self, name: str) -> tuple[int, int]:
        """Bytes that the machine has sent and received since it was made, with the headers of their packets."""
        port = self.machine(name).port
        for line in pathlib.Path(f'/proc/{self._switch.pid}/net/dev').read_text().splitlines():
            device, _, numbers = line.strip().partition(':')
            if device == port:
                fields = numbers.split()
                return int(fields[0]), int(fields[8])
        raise UserError(f'the cable of {name} is not there')

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on the machine; SIGKILL ends it with the thread that starts it."""
        setpriv = [shutil.which('setpriv'), '--pdeathsig=KILL', '--']
        return [*self._enter(self.machine(name).pid), *setpriv, *command]

    def start(self, name: str, command: Sequence[str], log: str | pathlib.Path, environ: Mapping[str, str]
              ) -> subprocess.Popen:
        """Starts a process on the machine, in this process's working folder; its output is added to the file `log`.

        It ends, by SIGKILL, with the thread that calls this.
        """
        with open(log, 'ab') as output:
            return subprocess.Popen(self.command(name, command), stdin=subprocess.DEVNULL, stdout=output,
                                    stderr=subprocess.STDOUT, env=dict(environ), start_new_session=True)


def enter_namespaces(files: Sequence[str]) -> None:
    """Puts this process, which must have one thread, in a machine's namespaces; SIGKILL ends it with its parent.

    For a process that was forked, where `Laboratory.command` is of no use. Raises OSError.
    """
    libc, folder, parent = ctypes.CDLL(None, use_errno=True), os.getcwd(), os.getppid()
    for handle in [os.open(file, os.O_RDONLY) for file in files]:  # All are opened before the first changes what is.
        if libc.setns(handle, 0):
            raise OSError(ctypes.get_errno(), f'setns: {os.strerror(ctypes.get_errno())}')
        os.close(handle)
    os.chdir(folder)
    set_death_signal, set_dumpable = 1, 4  # Of <linux/prctl.h>; the kernel forgets both when the user changes.
    libc.prctl(set_dumpable, 1)
    libc.prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before that was said.
        os._exit(EXIT_FAILED)
