"""Inception in-graph on real clusters: it trains, ends, names who is lost, goes back to its checkpoint, and refuses."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
import tensorflow as tf
from conftest import ROOT
from training_cluster import SMALL, TrainingCluster

from dist.hosts import Cluster
from dist.in_graph import unfiltered_config
from dist.launch.local import free_ports
from dist.server import start_server
from inception_mg.model.inception_v3 import inception_v3
from inception_mg.model.layers import Layers
from inception_mg.placement import CPU, in_graph
from inception_mg.training.towers import read_batches

pytestmark = pytest.mark.cluster
v1 = tf.compat.v1
SCRIPTS = ROOT / 'scripts'
LIMIT = 240.0


class InGraphCluster(TrainingCluster):
    """The tasks of one in-graph training; worker 0 is the client."""

    script = SCRIPTS / 'train_in_graph.py'


def newest(folder: pathlib.Path):
    return tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))


def test_launched_with_its_stages_on_two_machines_and_without_a_ps(three_classes, tmp_path):
    flags = [f'--{name}={value}' for name, value in SMALL.items()]
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / 'launch_local.py'), '--in_graph', '--num_ps=0', '--num_workers=2', '--', *flags,
         f'--data_dir={three_classes}', f'--train_dir={tmp_path}/train', '--max_steps=2', '--split_model=stages',
         '--split_over_hosts'], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'variables on /job:worker/task:0/device:CPU:0' in done.stdout
    assert 'tower 0: stages over /job:worker/task:0/device:CPU:0, /job:worker/task:1/device:CPU:0' in done.stdout
    assert 'worker 1 | worker 1 ends: the job is done' in done.stdout
    assert newest(tmp_path / 'train').get_tensor('global_step') == 2


def test_it_survives_a_worker_a_ps_and_its_client_and_ends_well(three_classes, tmp_path):
    with InGraphCluster(tmp_path, three_classes, save_interval_secs=1, save_summaries_secs=1e6) as cluster:
        cluster.start_all()
        for task in ('worker 1', 'ps 0'):
            cluster.wait_line('worker 0', 'saved ', LIMIT, cluster.count('worker 0') - 1)
            lost = cluster.count('worker 0')
            cluster.kill(task)
            address = cluster.worker_hosts[1] if task == 'worker 1' else cluster.ps_hosts[0]
            cluster.wait_line('worker 0', f'chief is waiting for {task} at {address}', 30, lost)
            cluster.start(task)
            cluster.wait_line('worker 0', f'{task} was restarted: .* back to the newest checkpoint', LIMIT, lost)
            goes_on_from_its_checkpoint(cluster, lost)
        cluster.kill('worker 0', number=signal.SIGTERM)
        assert cluster.wait_exits('worker 0', limit=60) == [143]
        saved = int(newest(cluster.train_dir).get_tensor('global_step'))
        assert saved >= cluster.steps('worker 0')[-1]
        seen = cluster.count('worker 0')
        cluster.start('worker 0', max_steps=saved + 2)  # The others have served on.
        assert cluster.wait_exits(limit=LIMIT) == [0, 0, 0]
        assert cluster.steps('worker 0', seen) == [saved + 1, saved + 2]
        ends_with_the_checkpoint_of_one_machine(cluster, saved + 2)


def ends_with_the_checkpoint_of_one_machine(cluster: InGraphCluster, step: int) -> None:
    """One file, the screen of two towers, and every variable, average and slot by the names of one machine."""
    assert '4 images per update; here 4 = 2 towers x 2; 6.0 steps per epoch' in cluster.text('worker 0')
    assert not [task for task in cluster.tasks if 'Traceback' in cluster.text(task)]
    assert len(list(cluster.train_dir.glob(f'model.ckpt-{step}.data*'))) == 1
    names = set(newest(cluster.train_dir).get_variable_to_shape_map())
    layers = Layers(is_training=False, width=0.05)
    with tf.Graph().as_default():
        inception_v3(tf.zeros([1, 75, 75, 3]), 4, layers)
        weights = {variable.op.name for variable in v1.trainable_variables()}
        moving = {variable.op.name for variable in v1.global_variables()} - weights
    suffixes = ('', '/ExponentialMovingAverage', '/RMSProp', '/RMSProp_1')
    assert names == {name + suffix for name in weights for suffix in suffixes} | {
        name + suffix for name in moving for suffix in suffixes[:2]} | {'global_step'}


def goes_on_from_its_checkpoint(cluster: InGraphCluster, since: int) -> None:
    """Waits until training goes on after line `since` at the step after the one restored."""
    line = cluster.wait_line('worker 0', r'restored .*model\.ckpt-\d+', LIMIT, since)
    cluster.wait_training(2, line)
    restored = int(cluster.lines('worker 0')[line][1].rpartition('-')[2])
    assert restored > 0 and cluster.steps('worker 0', line)[0] == restored + 1


def process_numbers(first: int, readers: int, batch_size: int) -> tf.data.Dataset:
    """Which process reads: Linux shows each its own /proc/self."""
    return tf.data.Dataset.range(1).flat_map(lambda _: tf.data.TextLineDataset('/proc/self/stat')).map(
        lambda line: (tf.strings.to_number(tf.strings.split([line]).values[0]), tf.constant(0))).batch(batch_size)


def test_each_worker_runs_its_own_data_set_and_gives_up_without_a_client(three_classes, tmp_path):
    with InGraphCluster(tmp_path, three_classes, 0, 2, start_timeout=4, lost_timeout=4) as cluster:
        cluster.start('worker 1')
        cluster.wait_line('worker 1', 'ready for the chief')
        client = Cluster((), tuple(cluster.worker_hosts), 'worker', 0, needs_ps=False)
        server = start_server(client, unfiltered_config(client))
        with tf.Graph().as_default():
            batches, starts = read_batches(in_graph(0, [[CPU], [CPU]]), process_numbers, 2)
            with v1.Session(server.target, config=unfiltered_config(client)) as session:
                session.run(starts)
                numbers = [int(images_v[0]) for images_v in session.run([batch[0] for batch in batches])]
        assert numbers == [os.getpid(), cluster._processes['worker 1'].pid]
        assert cluster.wait_exits('worker 1', limit=30) == [138]
        assert 'worker 1 ends: the chief has not been heard of for 4 s' in cluster.text('worker 1')


def refusal(cluster: InGraphCluster, task: str, code: int) -> str:
    """Waits for the task's end with `code`, and returns the one line that says why."""
    assert cluster.wait_exits(task, limit=60) == [code]
    line, = (line for line in cluster.text(task).splitlines() if line.startswith('train_in_graph.py: '))
    assert 'Traceback' not in cluster.text(task)
    return line


def test_who_does_not_fit_or_is_missing_is_named(three_classes, tmp_path):
    with InGraphCluster(tmp_path, three_classes, 0, 2) as cluster:
        cluster.start('worker 1')
        cluster.wait_line('worker 1', 'ready for the chief')
        for flags, code, words in (
                ({'num_gpus': 2}, 1, f'worker 1 at {cluster.worker_hosts[1]} offers 1 CPU device, but each '
                 'worker needs 2'),
                ({'worker_hosts': f'{cluster.worker_hosts[0]},{cluster.worker_hosts[1]},127.0.0.1:1'}, 1,
                 'the worker list has 2 hosts there and 3 here'),
                ({'ps_hosts': f'127.0.0.1:{free_ports(1)[0]}', 'start_timeout': 2}, 138, 'waiting for ps 0 at ')):
            cluster.log_path('worker 0').unlink(missing_ok=True)
            cluster.start('worker 0', **flags)
            assert words in refusal(cluster, 'worker 0', code)
        cluster.kill('worker 1', number=signal.SIGTERM)  # None of them was its client: it serves on until it is told.
        assert cluster.wait_exits('worker 1', limit=15) == [143]


@pytest.mark.parametrize('flags, words', [
    ({'worker_hosts': False, 'job_name': False}, 'no cluster: give --worker_hosts'),
    ({'split_over_hosts': True}, '--split_over_hosts needs --split_model'),
    ({'sync': True}, "Unknown command line flag 'sync'"), ({'task_id': 5}, 'there is no worker 5')])
def test_wrong_flags_in_one_line(three_classes, tmp_path, flags, words):
    with InGraphCluster(tmp_path, three_classes, 0, 2) as cluster:
        cluster.start('worker 1', **flags)
        assert words in refusal(cluster, 'worker 1', 2)
