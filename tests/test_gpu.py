"""On real GPUs: towers compute there, variables stay on the CPU. Run with `pytest -m gpu`."""

import numpy as np
import pytest
import tensorflow as tf
from forms import FAST

from inception_mg.config import DeviceConfig, ModelConfig
from inception_mg.model.losses import classification_loss
from inception_mg.training import step_records
from inception_mg.training.devices import local_machine
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize('compute_dtype', ['float32', 'bfloat16', 'float16'])
def test_towers_compute_on_gpus_and_variables_stay_on_the_cpu(compute_dtype):
    gpus = min(2, len(tf.config.list_physical_devices('GPU')))
    if not gpus:
        pytest.skip('no GPU on this machine')
    random = np.random.RandomState(0)
    batch = (random.uniform(-1, 1, (8, 107, 107, 3)).astype(np.float32), np.arange(8, dtype=np.int32) % 6)
    model = ModelConfig(width=0.25, compute_dtype=compute_dtype)
    machine = local_machine(DeviceConfig(num_gpus=gpus))
    with tf.Graph().as_default():
        step = build_train_step(machine.placement, Task(
            lambda part, parts, size: tf.data.Dataset.from_tensors(batch).repeat(),
            lambda part, tower: classification_loss(*part, 6, model, tower.branches, tower.stages,
                                                    operations=FAST), 100, 8,
            scale_loss=compute_dtype == 'float16', operations=FAST))
        with v1.Session(config=machine.session_config) as session:
            session.run(v1.global_variables_initializer())
            session.run(step.start_input)
            metadata = v1.RunMetadata()
            loss_v, _ = session.run([step.loss, step.train_op], options=step_records.trace_options(),
                                    run_metadata=metadata)
    assert np.isfinite(loss_v)
    where = step_records.devices_of_ops(metadata)
    for number in range(gpus):
        convs = {device for name, device in where.items() if f'tower_{number}/' in name and name.endswith('/Conv2D')}
        assert convs == {f'/device:GPU:{number}'}
    variables = {device for name, device in where.items() if name.endswith(('/RMSProp', '/ExponentialMovingAverage'))}
    assert variables == {'/device:CPU:0'}
