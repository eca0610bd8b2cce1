"""Runs the manifests of deploy/kubernetes on this machine: processes for pods, and the rules of those who start them.

What each of the three does was read in its source: Kubeflow's training operator 1.9 (pkg/controller.v1), Volcano 1.15
(pkg/controllers/job), and the Job controller as its reference describes it. They share `Operator`: it makes pods that
are not there, and `reconcile` says what becomes of those that have ended.

    operator = TFJob(manifests.load(FOLDER / 'tfjob'), folder, flags=['--max_steps=8'])
    with operator:
        operator.run_until(lambda: operator.phase('inception-chief-0') == 'Running')
        operator.delete_pod('inception-worker-0')     # SIGTERM, 30 s, SIGKILL: as kubectl does
        assert operator.finish() == 'Succeeded'

Where a pod's name leads is said by `network`: on loopback each name stands for a free port of this machine; in a
laboratory it is the name of a machine.
"""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import manifests
from cluster_harness import fork_server
from conftest import ROOT

from dist.launch.local import free_ports
from inception_mg import tf_environment

NAMESPACE = 'default'
PORT = 2222


class Loopback:
    """Every pod on 127.0.0.1, at a port of its own: names are replaced where the program would read them."""

    def __init__(self):
        self._ports: dict[str, int] = {}

    def known(self, names: Sequence[str]) -> None:
        """Called once, with the names of all pods that others may ask for."""
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))

    def translated(self, text: str) -> str:
        """`text` with the address of this machine for each 'name:port'."""
        for name in sorted(self._ports, key=len, reverse=True):
            text = text.replace(f'{name}:{PORT}', f'127.0.0.1:{self._ports[name]}')
        return text

    def start(self, pod: 'Pod', command: list[str], log: pathlib.Path, environ: dict[str, str]):
        """Starts the process of a pod."""
        return fork_server().start([self.translated(word) for word in command], log,
                                   {name: self.translated(value) for name, value in environ.items()})


class Machines:
    """Every pod on a machine of a laboratory, by its own name and port; made anew, it has another address."""

    def __init__(self, laboratory):
        self._laboratory = laboratory

    def known(self, names: Sequence[str]) -> None:
        """Called once, with the names of all pods that others may ask for."""
        for name in names:
            self._laboratory.add(name)

    def start(self, pod: 'Pod', command: list[str], log: pathlib.Path, environ: dict[str, str]):
        """Starts the process of a pod."""
        if pod.made:
            self._laboratory.move(pod.host)
        return fork_server().start(command, log, environ, self._laboratory.namespaces(pod.host))


@dataclasses.dataclass
class Pod:
    """One pod. name: by which it is deleted; it may be made anew under the same name. host: by which others reach it.
    task, index: whose replica it is. made: how many there were before it."""

    name: str
    host: str
    task: str
    index: int
    template: dict
    process: object = None
    made: int = 0
    disrupted: bool = False

    @property
    def code(self) -> int | None:
        """The exit code as a kubelet tells it; None while it runs."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def phase(self) -> str:
        return 'Running' if self.code is None else 'Failed' if self.code else 'Succeeded'


class Operator:
    """One job. folder: where volumes and logs go. flags: added to the file of flags.

    outcome: '' while the job runs, then 'Succeeded' or 'Failed'. events: what was done, in order.
    """

    grace = 60.0

    def __init__(self, resources: list[dict], folder: pathlib.Path, flags: Sequence[str] = (), network=None):
        self.resources, self.folder, self.network = resources, folder, network or Loopback()
        self.outcome, self.events = '', []
        self._pods: dict[str, Pod] = {}
        self._made: dict[str, int] = {}
        text = manifests.config_map(resources, 'inception-flags')['flags.txt']
        (folder / 'flags.txt').write_text('\n'.join([text.rstrip(), *flags, '']))
        self.network.known([pod.host for pod in self.wanted()])

    def wanted(self) -> Iterator[Pod]:
        """All pods of the job, in order."""
        raise NotImplementedError

    def reconcile(self, pod: Pod) -> None:
        """What becomes of a pod that has ended with another code than 0."""
        raise NotImplementedError

    def verdict(self) -> str:
        """'Succeeded', 'Failed' or '' of a job whose pods are as they are."""
        raise NotImplementedError

    def environment(self, pod: Pod) -> dict[str, str]:
        """What the operator adds to the environment of a pod."""
        return {}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        for pod in self._pods.values():
            if pod.phase == 'Running':
                pod.process.send_signal(signal.SIGKILL)
                pod.process.wait(20)
        if kind:
            print('\n'.join(self.events))
            for name in self._made:
                print(f'--- {name}\n{self.text(name)[-4000:]}')

    def step(self) -> None:
        """One look at all pods."""
        for pod in self.wanted():
            there = self._pods.get(pod.name)
            if there is None:
                self._create(pod)
            elif there.phase == 'Failed' and not self.outcome:
                self.events.append(f'{pod.name} ended with {there.code}')
                self.reconcile(there)
        self.outcome = self.outcome or self.verdict()

    def _create(self, pod: Pod) -> None:
        pod.made = self._made.get(pod.name, -1) + 1
        self._made[pod.name] = pod.made
        container = pod.template['spec']['containers'][0]
        environ = {entry['name']: entry['value'] for entry in container.get('env', ())}
        for source in container.get('envFrom', ()):
            environ |= manifests.config_map(self.resources, source['configMapRef']['name'])
        environ |= self.environment(pod)
        words = [re.sub(r'\$\((\w+)\)', lambda match: environ.get(match[1], match[0]), word)
                 for word in container['args']]
        paths = {mount['mountPath']: mount['name'] for mount in container['volumeMounts']}
        assert '/etc/inception' in paths
        command = [sys.executable, str(ROOT / words[0]),
                   *(word.replace('/etc/inception', str(self.folder)) for word in words[1:])]
        environ = tf_environment.DEFAULTS | os.environ | environ
        pod.process = self.network.start(pod, command, self._log(pod.name), environ)
        self._pods[pod.name] = pod
        self.events.append(f'{pod.name} made')

    def _log(self, name: str) -> pathlib.Path:
        return self.folder / f'{name}.log'

    def text(self, name: str) -> str:
        """All that the pods of this name wrote."""
        return self._log(name).read_text() if self._log(name).exists() else ''

    def remove(self, pod: Pod) -> None:
        """Takes away a pod, ended or not; the next step makes another one."""
        self.terminate(pod)
        del self._pods[pod.name]

    def terminate(self, pod: Pod) -> None:
        """SIGTERM, and after the grace SIGKILL."""
        if pod.phase == 'Running':
            pod.process.send_signal(signal.SIGTERM)
            try:
                pod.process.wait(self.grace)
            except subprocess.TimeoutExpired:
                pod.process.send_signal(signal.SIGKILL)
                pod.process.wait(20)

    def delete_pod(self, name: str) -> int:
        """What `kubectl delete pod` does; returns the code with which the pod ended."""
        pod = self._pods[name]
        self.terminate(pod)
        self.events.append(f'{name} deleted, ended with {pod.code}')
        self.deleted(pod)
        return pod.code

    def deleted(self, pod: Pod) -> None:
        """What the operator makes of a pod that somebody deleted: another one."""
        del self._pods[pod.name]

    def kill(self, name: str) -> None:
        """The node's memory is full, say: SIGKILL."""
        self._pods[name].process.send_signal(signal.SIGKILL)
        self._pods[name].process.wait(20)

    def made(self, name: str) -> int:
        """How many pods of this name there were."""
        return self._made.get(name, -1) + 1

    def phase(self, name: str) -> str:
        return self._pods[name].phase if name in self._pods else 'Pending'

    def run_until(self, reached: Callable[[], object], limit: float = 120.0) -> None:
        """Looks at all pods again and again until `reached`; AssertionError when that takes too long."""
        deadline = time.monotonic() + limit
        while not reached():
            assert time.monotonic() < deadline, f'not reached in {limit:g} s'
            assert not self.outcome, f'the job has {self.outcome.lower()}: {self.events}'
            self.step()
            time.sleep(0.1)

    def finish(self, limit: float = 120.0) -> str:
        """Runs until the job is over and, if it succeeded, its pods have ended by themselves; returns its outcome."""
        deadline = time.monotonic() + limit
        while self.outcome != 'Failed' and not (
                self.outcome and all(pod.phase != 'Running' for pod in self._pods.values())):
            assert time.monotonic() < deadline, f'the job is not over in {limit:g} s'
            self.step()
            time.sleep(0.1)
        return self.outcome


def of_kind(resources: list[dict], kind: str) -> list[dict]:
    """The resources of one kind."""
    return [each for each in resources if each['kind'] == kind]


class TFJob(Operator):
    """Kubeflow's training operator. dynamic: as with enableDynamicWorker."""

    def __init__(self, resources, folder, flags=(), network=None, dynamic: bool = False):
        self._job, self._dynamic = of_kind(resources, 'TFJob')[0], dynamic
        super().__init__(resources, folder, flags, network)

    def wanted(self):
        name = self._job['metadata']['name']
        for task, replica in self._job['spec']['tfReplicaSpecs'].items():
            for index in range(replica['replicas']):
                pod = f'{name}-{task.lower()}-{index}'
                yield Pod(pod, f'{pod}.{NAMESPACE}.svc', task, index, replica['template'])

    def environment(self, pod):
        cluster: dict[str, list[str]] = {}
        for other in self.wanted():
            cluster.setdefault(other.task.lower(), []).append(f'{other.host}:{PORT}')
        task = pod.task.lower()
        if self._dynamic:
            own = cluster[task][pod.index]
            cluster = {'worker': {str(pod.index): own} if task == 'worker' else {},
                       'ps': cluster['ps'] if task == 'worker' else [own] if task == 'ps' else []}
        return {'TF_CONFIG': json.dumps({'cluster': cluster, 'task': {'type': task, 'index': pod.index},
                                         'environment': 'cloud'})}

    def reconcile(self, pod):
        policy = self._job['spec']['tfReplicaSpecs'][pod.task]['restartPolicy']
        assert policy == 'ExitCode'
        if pod.code >= 128:
            self.remove(pod)
        else:
            self.outcome = 'Failed'

    def verdict(self):
        return 'Succeeded' if self.phase(f'{self._job["metadata"]["name"]}-chief-0') == 'Succeeded' else ''


class Volcano(Operator):
    """Volcano's job controller with its plugins svc and tensorflow."""

    def __init__(self, resources, folder, flags=(), network=None):
        self._job, self.restarts = of_kind(resources, 'Job')[0], 0
        super().__init__(resources, folder, flags, network)

    def wanted(self):
        name = self._job['metadata']['name']
        for task in self._job['spec']['tasks']:
            for index in range(task['replicas']):
                pod = f'{name}-{task["name"]}-{index}'
                yield Pod(pod, f'{pod}.{name}', task['name'], index, task['template'])

    def environment(self, pod):
        assert pod.template['spec']['restartPolicy'] == 'Never' and 'tensorflow' in self._job['spec']['plugins']
        cluster: dict[str, list[str]] = {}
        for other in self.wanted():
            cluster.setdefault(other.task, []).append(f'{other.host}:{PORT}')
        return {'TF_CONFIG': json.dumps({'cluster': cluster, 'task': {'type': pod.task, 'index': pod.index}})}

    def _action(self, event: str, code: int) -> str:
        return next((policy['action'] for policy in self._job['spec']['policies']
                     if policy.get('event') == event or policy.get('exitCode') == code), 'SyncJob')

    def _do(self, action: str, pod: Pod) -> None:
        if action == 'RestartPod':
            self.remove(pod)
            self.restarts += 1
            if self.restarts >= self._job['spec']['maxRetry']:
                self.outcome = 'Failed'
        elif action == 'TerminateJob':
            self.outcome = 'Failed'
            for other in self._pods.values():
                self.terminate(other)

    def reconcile(self, pod):
        self._do(self._action('PodFailed', pod.code), pod)

    def deleted(self, pod):
        self._do(self._action('PodEvicted', 0), pod)
        self._pods.pop(pod.name, None)  # Whatever the policy: the next look makes what is missing.

    def verdict(self):
        phases = [self.phase(pod.name) for pod in self.wanted()]
        if not all(phase in ('Succeeded', 'Failed') for phase in phases):
            return ''
        return 'Succeeded' if phases.count('Succeeded') >= self._job['spec']['minAvailable'] else 'Failed'


class Jobs(Operator):
    """The Job controller of Kubernetes itself, with completionMode Indexed, for several jobs."""

    def __init__(self, resources, folder, flags=(), network=None):
        self._jobs = {job['metadata']['name']: job['spec'] for job in of_kind(resources, 'Job')}
        self._failures = dict.fromkeys(self._jobs, 0)
        super().__init__(resources, folder, flags, network)

    def wanted(self):
        for name, spec in self._jobs.items():
            for index in range(spec['completions']):
                pod = f'{name}-{index}'  # That is its hostname; the pod itself has five letters more.
                yield Pod(pod, f'{pod}.{spec["template"]["spec"]["subdomain"]}', name, index, spec['template'])

    def environment(self, pod):
        return {'JOB_COMPLETION_INDEX': str(pod.index)}

    def reconcile(self, pod):
        action = next((rule['action'] for rule in self._jobs[pod.task]['podFailurePolicy']['rules']
                       if self._fits(rule, pod)), 'Count')
        self.events.append(f'{pod.name}: {action}')
        self._failures[pod.task] += action == 'Count'
        if action == 'FailJob' or self._failures[pod.task] > self._jobs[pod.task]['backoffLimit']:
            self.outcome = 'Failed'
        else:
            self.remove(pod)

    def _fits(self, rule: dict, pod: Pod) -> bool:
        if 'onPodConditions' in rule:
            return pod.disrupted and rule['onPodConditions'][0]['type'] == 'DisruptionTarget'
        return pod.code in rule['onExitCodes']['values'] and rule['onExitCodes']['operator'] == 'In'

    def deleted(self, pod):
        """podReplacementPolicy Failed: it stays until it has ended, and counts by its code."""

    def verdict(self):
        done = all(self.phase(pod.name) == 'Succeeded' for pod in self.wanted())
        return 'Succeeded' if done else ''
