"""A STOP file ends a whole cluster: the chief says why, the others end with it, and its last checkpoint is whole."""

import json

import pytest
import tensorflow as tf
from training_cluster import TrainingCluster

from inception_mg.run_dir import run_state

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize('sync', [False, True])
def test_a_stop_file_ends_every_task(three_classes, tmp_path, sync):
    flags = {'sync': True} if sync else {}
    with TrainingCluster(tmp_path, three_classes, 1, 2, max_steps=100000, save_summaries_secs=1e6, **flags) as cluster:
        cluster.start_all()
        cluster.wait_line('worker 1', 'begins at step', 240)
        cluster.wait_training(2)
        run_state.request_stop(str(cluster.train_dir), 'enough')
        assert cluster.wait_exits(limit=120) == [0, 0, 0]
        assert 'STOP: enough: saving and ending' in cluster.text('worker 0')
        newest = tf.train.latest_checkpoint(str(cluster.train_dir))
        assert int(newest.split('-')[-1]) >= cluster.steps('worker 0')[-1]
        assert run_state.is_over(str(cluster.train_dir))
        assert json.loads((cluster.train_dir / 'model.json').read_text())['classes'] == ['blue', 'green', 'red']
        cluster.check_clean()
