"""Inception on real clusters: it trains, evaluates, resumes anywhere, survives SIGKILL, and refuses."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from cluster_harness import record
from conftest import ROOT
from training_cluster import SMALL, TrainingCluster

from dist.launch.local import free_ports
from inception_mg.config import DataConfig, DeviceConfig, EvalConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.data.example import build_example
from inception_mg.evaluation.evaluate import evaluate
from inception_mg.training.image_task import image_task
from inception_mg.training.train import train_here

pytestmark = pytest.mark.cluster

MODEL = ModelConfig(width=0.05, batch_norm_decay=0.9)
LIMIT = 240.0  # Seconds for one life of a cluster, also on a machine that is busy otherwise.


def names_in(checkpoint: str) -> set[str]:
    return set(tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map())


def step_in(checkpoint: str) -> int:
    return int(tf.train.load_checkpoint(checkpoint).get_tensor('global_step'))


@pytest.fixture(scope='module')
def trained(three_classes, tmp_path_factory):
    """An asynchronous training of 12 steps by 1 ps and 2 workers: the cluster, after its end."""
    with TrainingCluster(tmp_path_factory.mktemp('trained'), three_classes, 1, 2, max_steps=12) as cluster:
        for task, flags in (('ps 0', {}), ('worker 0', {}), ('worker 1', {'train_dir': False})):
            cluster.start(task, **flags)  # Only the chief need be told where checkpoints go.
        assert cluster.wait_exits(limit=LIMIT) == [0, 0, 0]
    return cluster


def test_the_first_screen(trained, three_classes):
    chief, other = trained.text('worker 0'), trained.text('worker 1')
    assert 'cluster    chief of 1 ps and 2 workers, asynchronous; reads part 1 of 2' in chief
    assert f'{three_classes}: 24 images of 3 classes' in chief and 'learning rate 0.01 x 0.94 every 2 epochs' in chief
    assert 'variables on /job:ps/task:0/device:CPU:0' in chief and 'tower 0 on /job:worker/task:0' in chief
    assert 'cluster    worker 1 of 1 ps and 2 workers, asynchronous; reads part 2 of 2' in other
    assert 'schedule' not in other and 'train_dir' not in other


def test_it_ends_well(trained):
    newest = tf.train.latest_checkpoint(str(trained.train_dir))
    # A worker whose step was under way when another made the last one finishes it, and may make one more.
    assert 12 <= step_in(newest) <= 14 and newest.endswith(f'model.ckpt-{step_in(newest)}')
    assert [path.name for path in trained.train_dir.glob('*.data*')] == [
        f'{pathlib.Path(newest).name}.data-00000-of-00001']
    assert len(list(trained.train_dir.glob('events*'))) == 1, 'somebody else than the chief wrote summaries'
    trained.check_clean()


def test_its_checkpoint_evaluates_and_goes_on_on_one_machine(trained, three_classes, tmp_path):
    newest = tf.train.latest_checkpoint(str(trained.train_dir))
    data = DataConfig(data_dir=three_classes, batch_size=4, image_size=75)
    scores = evaluate(data, MODEL, EvalConfig(checkpoint_dir=str(trained.train_dir), eval_dir=str(tmp_path / 'eval'),
                                              run_once=True))
    assert scores.images == 9
    here = tmp_path / 'here'
    copy_checkpoint(trained.train_dir, here)
    lines: list[str] = []
    run = RunConfig(train_dir=str(here), max_steps=step_in(newest) + 1)
    optimizer = OptimizerConfig(initial_learning_rate=0.01, moving_average_decay=0.9)
    train_here(image_task(data, MODEL, optimizer), DeviceConfig(), run, lines.append)
    assert any(f'resumes from model.ckpt-{step_in(newest)}' in line for line in lines)
    # Its names are those of one machine, which test_train.py compares with the ones of 2016.
    assert names_in(tf.train.latest_checkpoint(str(here))) == names_in(newest)


def copy_checkpoint(source: pathlib.Path, target: pathlib.Path) -> None:
    target.mkdir(exist_ok=True)
    for path in [source / 'checkpoint', *source.glob('model.ckpt*')]:
        (target / path.name).write_bytes(path.read_bytes())


def test_sync_goes_on_from_it_on_two_ps_in_slices(trained, three_classes, tmp_path):
    """From a checkpoint of whole variables to one of the same names."""
    begun = step_in(tf.train.latest_checkpoint(str(trained.train_dir)))
    with TrainingCluster(tmp_path, three_classes, 2, 2, max_steps=begun + 4, sync=True,
                         wire_dtype='bfloat16', partition_mb=0.01) as cluster:
        copy_checkpoint(trained.train_dir, cluster.train_dir)
        cluster.start_all()
        assert cluster.wait_exits(limit=LIMIT) == [0] * 4
        chief = cluster.text('worker 0')
        assert f'resumes from model.ckpt-{begun} at step {begun}' in chief and 'restored ' in chief
        assert re.search(r'slices     --partition_mb=0.01: \d+ variables, 0.\d MB, in \d+ slices', chief)
        assert '8 images per update; here 4 = 1 tower x 4; 3.0 steps per epoch' in chief
        assert cluster.steps('worker 0') == [begun + k for k in range(1, 5)]
        assert 'used [4, 4], dropped as too late [0, 0]' in chief
        newest = tf.train.latest_checkpoint(str(cluster.train_dir))
        assert step_in(newest) == begun + 4
        assert names_in(newest) == names_in(tf.train.latest_checkpoint(str(trained.train_dir)))
        cluster.check_clean()


def test_other_flags_are_refused_before_a_graph_is_built(three_classes, tmp_path):
    """The chief has said what its job is as soon as it is there; its own graph takes much longer."""
    with TrainingCluster(tmp_path, three_classes, width=0.3) as cluster:
        cluster.start('ps 0')
        cluster.start('worker 0')
        cluster.wait_line('ps 0', 'ready for 2 workers')
        cluster.wait_line('worker 0', 'serves on', LIMIT)
        time.sleep(1)
        for flags, words in (({'width': 0.1}, '--width is 0.3 there and 0.1 here'),
                             ({'sync': True}, '--sync is asynchronous there and synchronous, 2 of 2')):
            cluster.start('worker 1', train_dir=False, **flags)
            assert cluster.wait_exits('worker 1', limit=60) == [1] and words in cluster.text('worker 1')
        assert 'cluster    ' not in cluster.text('worker 1')  # The first screen comes after the graph.


def test_async_survives_a_worker_and_a_ps_and_obeys_sigterm(three_classes, tmp_path):
    with TrainingCluster(tmp_path, three_classes, save_interval_secs=1, save_summaries_secs=1e6,
                         prefetch_variables=True) as cluster:
        cluster.start_all()
        cluster.wait_line('worker 1', 'begins at step', LIMIT)
        cluster.wait_training(3)
        cluster.kill('worker 1')
        left, seen = cluster.steps('worker 0')[-1], cluster.count('worker 1')
        cluster.start('worker 1')
        back = cluster.wait_line('worker 1', r'worker 1 begins at step \d+', LIMIT, seen)
        assert int(cluster.lines('worker 1')[back][1].split()[-1]) >= left
        record('Inception, async: worker killed, back', 'went on', 0, 0.0)
        restart_ps(cluster, 'async')
        cluster.wait_line('worker 1', 'worker 1 begins at step', LIMIT, back + 1)
        end_by_sigterm(cluster)


def test_sync_with_a_backup_survives_a_worker_the_chief_and_a_ps(three_classes, tmp_path):
    with TrainingCluster(tmp_path, three_classes, 1, 3, save_interval_secs=1, save_summaries_secs=1e6,
                         sync=True, num_replicas_to_aggregate=2) as cluster:
        for task in ('ps 0', 'worker 0', 'worker 1'):  # Two gradients are enough: worker 2 is away.
            cluster.start(task)
        cluster.wait_training(2)
        cluster.start('worker 2')
        cluster.wait_line('worker 2', 'begins at step', LIMIT)
        seen, killed = cluster.count('worker 0'), time.time()
        cluster.kill('worker 1')
        cluster.wait_training(3, seen)
        record('Inception, sync with a backup: worker killed', 'went on without', 0, time.time() - killed)
        cluster.kill('worker 0')
        left, seen, killed = cluster.steps('worker 0')[-1], cluster.count('worker 0'), time.time()
        cluster.start('worker 0')
        cluster.wait_line('worker 0', 'goes on from the variables on the ps, which are alive', LIMIT, seen)
        cluster.wait_training(1, seen)
        assert cluster.steps('worker 0', seen)[0] > left, 'the chief threw updates away'
        record('Inception, sync with a backup: chief killed, back', 'went on from the ps', 0, time.time() - killed)
        assert 'resumes from' not in cluster.text('worker 0') and cluster.text('worker 0').count('starts new') == 1
        restart_ps(cluster, 'sync with a backup')
        end_by_sigterm(cluster, 'worker 0', 'worker 2', 'ps 0')
        tags = {value.tag for path in cluster.train_dir.glob('events*')
                for event in tf.compat.v1.train.summary_iterator(str(path)) for value in event.summary.value}
        assert {f'dropped_gradients/worker_{k}' for k in range(3)} < tags


def test_a_bad_record_of_a_worker_and_the_chief_saves_first(three_classes, tmp_path):
    shutil.copytree(three_classes, tmp_path / 'records')
    with tf.io.TFRecordWriter(str(tmp_path / 'bad')) as writer:
        writer.write(build_example(b'no JPEG', 9, 9, 1, 'blue', 'bad.jpg'))
    for shard in (tmp_path / 'records').glob('train-*'):
        shard.write_bytes(shard.read_bytes() + (tmp_path / 'bad').read_bytes())
    with TrainingCluster(tmp_path, three_classes, save_interval_secs=600) as cluster:
        cluster.start('ps 0')
        cluster.start('worker 0')
        cluster.wait_training(2)
        cluster.start('worker 1', data_dir=str(tmp_path / 'records'), train_dir=False)
        assert cluster.wait_exits(limit=LIMIT) == [1, 1, 1]
        assert 'bad.jpg' in cluster.text('worker 1') or '/records/train-0' in cluster.text('worker 1')
        chief = cluster.text('worker 0')
        kept = re.search(r'^kept: model\.ckpt-(\d+); lost: nothing$', chief, re.MULTILINE)
        assert kept and chief.index('kept: ') < chief.index('ends because worker 1 failed')
        assert int(kept[1]) >= cluster.steps('worker 0')[-1] >= 2
        assert step_in(tf.train.latest_checkpoint(str(cluster.train_dir))) == int(kept[1])


def restart_ps(cluster: TrainingCluster, manner: str) -> None:
    """Kills ps 0 after a checkpoint, starts it again, and waits until training has gone on from it."""
    cluster.wait_line('worker 0', 'saved ', LIMIT)
    seen, last, killed = cluster.count('worker 0'), cluster.steps('worker 0')[-1], time.time()
    cluster.kill('ps 0')
    cluster.start('ps 0')
    restored = cluster.wait_line('worker 0', 'restored .*model.ckpt', LIMIT, seen)
    cluster.wait_training(1, restored)
    first = cluster.steps('worker 0', restored)[0]
    assert first > 1, 'training began anew'
    record(f'Inception, {manner}: ps 0 killed, back', 'restored a checkpoint', max(0, last - first + 1),
           time.time() - killed)


def end_by_sigterm(cluster: TrainingCluster, *tasks: str) -> None:
    """Ends the workers, then the ps: the newest checkpoint holds the last step that was said."""
    for task in tasks or ('worker 0', 'worker 1', 'ps 0'):
        cluster.kill(task, number=signal.SIGTERM)
        assert cluster.wait_exits(task, limit=60) == [143], task
    newest = step_in(tf.train.latest_checkpoint(str(cluster.train_dir)))
    assert newest >= cluster.steps('worker 0')[-1]
    # TensorFlow may report as an ERROR that the session of a killed ps could not be closed.
    assert not [task for task in cluster.tasks if 'Traceback' in cluster.text(task)]


@pytest.mark.parametrize('flags, words', [
    ({'ps_hosts': False, 'worker_hosts': False, 'job_name': False}, 'no cluster: give --ps_hosts'),
    ({'ps_hosts': 'a:1,,b:2'}, 'entry 1 is empty'),
    ({'task_index': 7}, 'there is no worker 7'),
    ({'worker_hosts': 'localhost:5000,127.0.0.1:5000'}, 'the same address'),
    ({'sync': 'false', 'num_replicas_to_aggregate': 2}, '--num_replicas_to_aggregate=2 needs --sync'),
    ({'num_replicas_to_aggregate': 9}, '--num_replicas_to_aggregate=9, but the cluster has 2 workers'),
    ({'protocol': 'grpc+verbs'}, '--protocol=grpc+verbs: the servers of this TensorFlow speak grpc'),
    ({'subset': 'validation'}, '--subset=validation: training takes the train shards'),
    ({'sync': True, 'num_replicas_to_aggregate': 9}, '--num_replicas_to_aggregate=9, but the cluster has 2 workers'),
    ({'sync': True, 'prefetch_variables': True}, '--prefetch_variables is for asynchronous training'),
    ({'start_timeout': 0}, '--start_timeout=0'),
    ({'split_model': 'branches', 'split_devices': 1}, '--split_devices=1'),
    ({'gpus': '0,x'}, '--gpus=0,x'),
])
def test_wrong_flags_in_one_line(three_classes, tmp_path, flags, words):
    with TrainingCluster(tmp_path, three_classes) as cluster:
        cluster.start('worker 1', **({'task_id': False} if 'task_index' in flags else {}), **flags)
        assert refusal(cluster, 'worker 1', 2) == cluster.text('worker 1').strip()
        assert words in cluster.text('worker 1')


def refusal(cluster: TrainingCluster, task: str, code: int) -> str:
    """Waits for the task's end with `code`, and returns the one line that says why."""
    assert cluster.wait_exits(task, limit=60) == [code]
    lines = [line for line in cluster.text(task).splitlines() if line.startswith('train_distributed.py: ')]
    assert len(lines) == 1 and 'Traceback' not in cluster.text(task)
    return lines[0]


def test_a_port_in_use(three_classes, tmp_path):
    with TrainingCluster(tmp_path, three_classes) as cluster, socket.socket() as busy:
        busy.bind(('0.0.0.0', int(cluster.ps_hosts[0].split(':')[1])))
        busy.listen()
        cluster.start('ps 0')
        assert f'cannot listen on {cluster.ps_hosts[0]}' in refusal(cluster, 'ps 0', 1)


def test_other_lists_than_the_ps_has(three_classes, tmp_path):
    with TrainingCluster(tmp_path, three_classes) as cluster:
        cluster.start('ps 0')
        cluster.wait_line('ps 0', 'ready for 2 workers')
        cluster.start('worker 1', worker_hosts=f'127.0.0.1:1,{cluster.worker_hosts[1]}')
        assert 'was started with another cluster: worker 0 is' in refusal(cluster, 'worker 1', 1)


def test_tf_config(trained, three_classes, tmp_path):
    for text, code, words in (
            ('{', 2, 'TF_CONFIG is not JSON'),
            (json.dumps({'cluster': {'chief': ['127.0.0.1:21'], 'ps': ['127.0.0.1:22']},
                         'task': {'type': 'evaluator', 'index': 0}}), 0, 'precision@1 = ')):
        (tmp_path / str(code)).mkdir()
        with TrainingCluster(tmp_path / str(code), three_classes, environ={'TF_CONFIG': text},
                             run_once=True, eval_dir=str(tmp_path / 'eval')) as cluster:
            cluster.start('worker 0', ps_hosts=False, worker_hosts=False, job_name=False, task_id=False,
                          train_dir=str(trained.train_dir))
            assert cluster.wait_exits('worker 0', limit=120) == [code]
            assert words in cluster.text('worker 0')


def test_launch_local(three_classes, tmp_path):
    flags = [f'--{name}={value}' for name, value in SMALL.items()]
    done = subprocess.run(
        [sys.executable, str(ROOT / 'scripts' / 'launch_local.py'), '--num_ps=1', '--num_workers=1', '--', *flags,
         f'--data_dir={three_classes}', f'--train_dir={tmp_path}/train', '--max_steps=2'],
        capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'worker 0 | step 2/2' in done.stdout and 'ps 0     | ps 0 ends: the job is done' in done.stdout
    assert sorted(os.listdir(tmp_path / 'train' / 'logs')) == ['ps_0.log', 'worker_0.log']
    assert step_in(tf.train.latest_checkpoint(str(tmp_path / 'train'))) == 2


def test_slurm_makes_the_first_rank_a_ps(three_classes, tmp_path):
    ranks = {'SLURM_STEP_NODELIST': 'localhost', 'SLURM_STEP_TASKS_PER_NODE': '2', 'SLURM_PROCID': '0',
             'SLURM_JOB_ID': '17', 'SLURM_STEP_ID': '0'}
    with TrainingCluster(tmp_path, three_classes, environ=ranks) as cluster:
        cluster.start('ps 0', ps_hosts=False, worker_hosts=False, job_name=False, task_id=False, slurm_ps=1)
        cluster.wait_line('ps 0', 'ps 0 is ready for 1 workers')


def test_a_private_network_has_a_loopback_that_nobody_else_reaches():
    unshare = ['unshare', '--map-current-user', '--net', '--keep-caps']
    if not shutil.which('unshare') or subprocess.run([*unshare, 'true'], capture_output=True).returncode:
        pytest.skip('this system does not allow network namespaces without root')
    port, = free_ports(1)
    code = 'import socket; from dist.launch.local import raise_loopback; raise_loopback()\n' \
           'from dist.server import open_interfaces; assert open_interfaces() == []\n' \
           f'server = socket.create_server(("127.0.0.1", {port}))\n' \
           'socket.create_connection(server.getsockname(), 5)\n' \
           'print([name for _, name in socket.if_nameindex()], flush=True); input()'
    with subprocess.Popen([*unshare, sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, cwd=ROOT) as inside:
        interfaces = inside.stdout.readline()
        assert 'eth' not in interfaces and "'lo'" in interfaces
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(('127.0.0.1', port), 5)
        inside.communicate('\n', 30)
    assert inside.returncode == 0


@pytest.mark.parametrize('flags, words', [
    ([], '--train_dir is missing'), (['--', '--train_dir=gs://b/run'], '--log_directory'),
    (['--num_ps=0', '--', '--train_dir=x'], '--num_ps=0'),
    (['--kill=boss:1', '--', '--train_dir=x'], '--kill=boss:1 is not like'),
    (['--kill=worker:9@step=1', '--', '--train_dir=x'], '--kill names worker:9'), (['train_dir=x'], "'train_dir=x'")])
def test_launch_local_refuses(flags, words, tmp_path):
    done = subprocess.run([sys.executable, str(ROOT / 'scripts' / 'launch_local.py'), *flags], capture_output=True,
                          text=True, timeout=30, cwd=tmp_path)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not os.listdir(tmp_path)
