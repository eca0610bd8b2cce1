"""The doctor on servers of this process: who answers, who does not, who is of another cluster, and the verdict."""

import dataclasses
import json
import os
import socket
import subprocess
import sys

import pytest
import tensorflow as tf
from conftest import ROOT

from dist import doctor, introduction
from dist.hosts import Cluster
from dist.launch.local import free_ports
from dist.server import session_config, start_server

OTHER = 'inception-mg 9.9.9, TensorFlow 2.0.0, Python 3.10.0'


@pytest.fixture(scope='module')
def listener():
    """The address of somebody who accepts connections and says nothing."""
    with socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        silent.listen(8)
        yield f'127.0.0.1:{silent.getsockname()[1]}'


@pytest.fixture(scope='module')
def cluster(listener):
    """ps 0 and worker 1 run; ps 1 runs with other versions; ps 2 is somebody else; worker 0 is not started."""
    ports = free_ports(4)
    ps = [f'127.0.0.1:{port}' for port in ports[:2]] + [listener]
    workers = [f'127.0.0.1:{port}' for port in ports[2:]]
    lists = Cluster(tuple(ps), tuple(workers), 'evaluator', 0)
    servers = []
    for job, index in (('ps', 0), ('ps', 1), ('worker', 1)):
        task = dataclasses.replace(lists, job=job, index=index)
        with pytest.MonkeyPatch.context() as patch:
            if task.name == 'ps 1':
                patch.setattr(introduction, 'version_line', lambda: OTHER)
            servers.append(start_server(task, session_config(task), lambda line: None))
    yield lists
    del servers


def by_subject(findings: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    return {finding.subject: finding for finding in findings}


@pytest.fixture(scope='module')
def found(cluster, tmp_path_factory) -> dict[str, doctor.Finding]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, 'ANSWER_SECS', 2.0)
        return by_subject(doctor.examine(cluster, str(tmp_path_factory.mktemp('runs') / 'new' / 'run')))


def test_tasks_that_run_say_what_they_are(found, cluster):
    for name, address in (('ps 0', cluster.ps[0]), ('worker 1', cluster.workers[1])):
        assert found[name].level == doctor.OK and found[name].text.startswith(f'{address}: clock ')
        assert found[name].version == introduction.version_line() and found[name].version in found[name].text
        assert abs(float(found[name].text.split('clock ')[1].split()[0])) < 1.0  # It is this machine's own.
    assert 'MB/s from it, ' in found['ps 0'].text and 'MB/s' not in found['worker 1'].text


def test_what_is_wrong_is_named(found):
    assert found['chief'].level == doctor.WRONG and 'but nothing listens on port' in found['chief'].text
    assert found['ps 2'].level == doctor.WRONG and 'somebody listens, but no TensorFlow server' in found['ps 2'].text


def test_different_versions_are_a_warning_and_the_verdict_counts(found):
    assert found['versions'].level == doctor.WARNING and f'ps 1: {OTHER}' in found['versions'].text
    assert found['train_dir'].level == doctor.OK and 'GB free' in found['train_dir'].text
    assert found['verdict'].line == 'wrong    verdict    3 of 5 tasks answer; 2 wrong; 1 warning'


def test_a_task_of_another_cluster_and_one_at_another_place(cluster):
    swapped = dataclasses.replace(cluster, ps=(cluster.ps[1], cluster.ps[0]), workers=(cluster.workers[1],))
    found = by_subject(doctor.examine(swapped))
    assert found['ps 0'].level == doctor.WRONG
    assert 'a task of another cluster answers: ps 0 is' in found['ps 0'].text
    assert 'this machine knows no no-such-host.invalid' in doctor._reach('worker', 0, 'no-such-host.invalid:1').text


def test_a_server_of_another_program():
    port, = free_ports(1)
    server = tf.distribute.Server({'ps': [f'127.0.0.1:{port}']}, job_name='ps', task_index=0)
    found = by_subject(doctor.examine(Cluster((f'127.0.0.1:{port}',), (f'127.0.0.1:{port + 1}',), 'evaluator', 0)))
    assert 'a TensorFlow server that is none of this program' in found['ps 0'].text and server


def test_a_clock_that_is_wrong_is_a_warning(cluster, monkeypatch):
    monkeypatch.setattr(doctor, '_skew', lambda session, clock: 61.5)
    found = by_subject([doctor._ask(cluster, 'ps', 0, cluster.ps[0])])
    assert found['ps 0'].level == doctor.WARNING and 'clock +61.50 s' in found['ps 0'].text


def test_a_folder_that_cannot_be_written_or_is_nearly_full(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.shutil, 'disk_usage', lambda folder: doctor.shutil._ntuple_diskusage(10, 9, 1))
    assert doctor._disk(str(tmp_path)).level == doctor.WARNING
    monkeypatch.setattr(doctor.os, 'access', lambda folder, mode: False)
    assert 'cannot write in' in doctor._disk(str(tmp_path / 'run')).text


def test_a_worker_warns_of_ps_with_other_versions(cluster):
    lines: list[str] = []
    introduction.other_versions(dataclasses.replace(cluster, ps=cluster.ps[:2], job='worker', index=1), lines.append)
    assert lines == [f'worker 1 runs {introduction.version_line()}, but ps 1 {OTHER}: install the same everywhere']


def test_the_program_ends_with_its_verdict_and_reads_tf_config(cluster):
    config = {'cluster': {'ps': [cluster.ps[0]], 'worker': [cluster.workers[1]]},
              'task': {'type': 'worker', 'index': 0}}
    command = [sys.executable, str(ROOT / 'scripts' / 'doctor.py')]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                          env={**os.environ, 'TF_CONFIG': json.dumps(config)})
    assert done.returncode == 1 and 'a task of another cluster answers: the ps list has 3 hosts there' in done.stdout
    assert done.stdout.splitlines()[-1] == 'wrong    verdict    0 of 2 tasks answer; 2 wrong', done.stderr
    bare = {name: value for name, value in os.environ.items() if name != 'TF_CONFIG'}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=bare)
    assert done.returncode == 2 and 'no cluster: give --ps_hosts and --worker_hosts' in done.stderr
