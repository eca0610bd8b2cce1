"""compose.yaml and the systemd unit: tasks that know one another, little that they may do, and codes read right."""

import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT

from dist import hosts
from inception_mg import errors

yaml = pytest.importorskip('yaml', reason='PyYAML is not installed')
UNIT = ROOT / 'deploy' / 'systemd' / 'inception@.service'


@pytest.fixture(scope='module')
def services() -> dict[str, dict]:
    return json.loads(json.dumps(yaml.safe_load((ROOT / 'compose.yaml').read_text())['services']))


def test_the_tasks_of_the_compose_file_know_one_another_by_their_names(services):
    clusters = {name: hosts.from_tf_config(service['environment']['TF_CONFIG']) for name, service in services.items()
                if name != 'tensorboard'}
    assert {name: cluster.name for name, cluster in clusters.items()} == {
        'ps': 'ps 0', 'chief': 'chief', 'worker': 'worker 1', 'evaluator': 'evaluator 0'}
    for name in ('ps', 'chief', 'worker'):
        assert clusters[name].lists == {'ps': ['ps:2222'], 'worker': ['chief:2222', 'worker:2222']}
        assert clusters[name].address == f'{name}:2222'


def test_containers_may_do_little_and_only_the_screen_has_a_port(services):
    networks = yaml.safe_load((ROOT / 'compose.yaml').read_text())['networks']
    for name, service in services.items():
        assert service['read_only'] and service['cap_drop'] == ['ALL'] and service['tmpfs'] == ['/tmp'], name
        assert service['user'] == '1000:1000' and service['security_opt'] == ['no-new-privileges:true'], name
        assert service['stop_grace_period'] == '2m', name
        if name == 'tensorboard':
            assert [port.split(':')[0] for port in service['ports']] == ['127.0.0.1']
        else:
            assert 'ports' not in service and all(networks[each]['internal'] for each in service['networks']), name
    gpus = yaml.safe_load((ROOT / 'compose.gpu.yaml').read_text())['services']
    assert set(gpus) == set(services) and {name for name in gpus if 'deploy' in gpus[name]} == {'chief', 'worker'}


def settings() -> dict[str, list[str]]:
    """Name -> values of the unit's settings."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'^(\w+)=(.*)$', UNIT.read_text().replace('\\\n', ''), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def test_systemd_starts_again_what_another_start_can_help():
    unit = {name: ' '.join(values) for name, values in settings().items()}
    assert unit['Restart'] == 'on-failure' and int(unit['RestartForceExitStatus']) == errors.EXIT_RETRY
    never = {int(code) for code in unit['RestartPreventExitStatus'].split()}
    assert never == {errors.EXIT_FAILED, errors.EXIT_FLAGS, errors.EXIT_SIGTERM}
    assert int(unit['SuccessExitStatus']) == errors.EXIT_SIGTERM and int(unit['TimeoutStopSec']) >= 120
    assert unit['IPAddressDeny'] == 'any' and unit['StartLimitIntervalSec'] == '0'


@pytest.mark.parametrize('instance, job, index', [('ps-0', 'ps', 0), ('worker-12', 'worker', 12)])
def test_the_name_of_the_unit_says_which_task_it_is(instance, job, index, tmp_path):
    """The command of the unit, as systemd hands it to the shell, with another program in the place of Python."""
    shown = tmp_path / 'show'
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(0o755)
    line = settings()['ExecStart'][0].replace('%i', instance).replace('%%', '%').replace('$$', '$')
    line = re.sub(r'\S+/python', str(shown), line)
    lists = dict(entry.split('=', 1) for entry in (ROOT / 'deploy' / 'systemd' / 'cluster.env').read_text().splitlines()
                 if not entry.startswith('#'))
    done = subprocess.run(['/bin/sh', '-c', line], capture_output=True, text=True, env={**os.environ, **lists})
    program, *flags = done.stdout.splitlines()
    assert program == 'scripts/train_distributed.py', done.stderr
    values = dict(flag.removeprefix('--').split('=', 1) for flag in flags)
    cluster = hosts.from_flags(values['ps_hosts'], values['worker_hosts'], values['job_name'], int(values['task_id'])
                               if index < 2 else 1)
    assert (cluster.job, values['task_id'], values['batch_size']) == (job, str(index), '64')


@pytest.mark.skipif(not shutil.which('systemd-analyze'), reason='there is no systemd-analyze')
def test_systemd_knows_every_setting(tmp_path):
    instance = tmp_path / 'inception@ps-0.service'
    shutil.copy(UNIT, instance)
    done = subprocess.run(['systemd-analyze', 'verify', str(instance)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and 'Unknown' not in done.stderr, done.stderr
