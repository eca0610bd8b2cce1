"""Which devices the flags give, on machines with and without GPUs."""

import pytest
import tensorflow as tf

from inception_mg.config import DeviceConfig
from inception_mg.errors import FlagError
from inception_mg.placement import multi_gpu, split_model
from inception_mg.training import devices


@pytest.fixture
def gpus(monkeypatch):
    """Pretends that the machine has so many GPUs."""
    def pretend(count):
        found = [tf.config.PhysicalDevice(f'/physical_device:GPU:{n}', 'GPU') for n in range(count)]
        monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind=None: found)
    return pretend


def test_without_gpus_cpu_devices_take_their_place_and_a_line_says_so(gpus):
    gpus(0)
    machine = devices.local_machine(DeviceConfig(num_gpus=3))
    assert machine.placement == multi_gpu([f'/device:CPU:{n}' for n in range(3)])
    assert machine.session_config.device_count == {'CPU': 3, 'GPU': 0}
    assert not machine.session_config.allow_soft_placement
    assert 'no GPU' in machine.notes[0] and '3 CPU devices' in machine.notes[0]


def test_a_tower_on_each_gpu_and_only_those_are_touched(gpus):
    gpus(4)
    machine = devices.local_machine(DeviceConfig(num_gpus=2))
    assert machine.placement == multi_gpu(['/device:GPU:0', '/device:GPU:1'])
    assert machine.placement.variables == ('/device:CPU:0',)
    options = machine.session_config.gpu_options
    assert options.visible_device_list == '0,1' and options.allow_growth
    assert not machine.notes


def test_memory_fraction(gpus):
    gpus(1)
    options = devices.local_machine(DeviceConfig(gpu_memory_fraction=0.2)).session_config.gpu_options
    assert options.per_process_gpu_memory_fraction == pytest.approx(0.2) and not options.allow_growth


def test_more_towers_than_gpus_is_refused_with_both_numbers(gpus):
    gpus(1)
    with pytest.raises(FlagError, match='num_gpus=4.* 1 GPU '):
        devices.local_machine(DeviceConfig(num_gpus=4))


@pytest.mark.parametrize('by', ['branches', 'stages'])
def test_splits(gpus, by):
    gpus(4)
    names = [f'/device:GPU:{n}' for n in range(4)]
    assert devices.local_machine(DeviceConfig(split_model=by)).placement == split_model([names[:2]], by)
    assert devices.local_machine(DeviceConfig(split_model=by, num_gpus=4)).placement == split_model(
        [names[:2], names[2:]], by)
    assert devices.local_machine(DeviceConfig(split_model=by, num_gpus=4, split_devices=4)).placement == split_model(
        [names], by)


@pytest.mark.parametrize('config, culprit', [
    (DeviceConfig(num_gpus=-1), 'num_gpus=-1'), (DeviceConfig(gpu_memory_fraction=1.5), 'gpu_memory_fraction=1.5'),
    (DeviceConfig(split_model='stages', split_devices=1), 'split_devices=1'),
    (DeviceConfig(split_model='stages', num_gpus=3), 'num_gpus=3')])
def test_refusals(gpus, config, culprit):
    gpus(4)
    with pytest.raises(FlagError, match=culprit):
        devices.local_machine(config)


def test_the_hint_is_for_float32_only(monkeypatch, gpus):
    gpus(0)
    monkeypatch.setattr(devices, '_cpu_has_amx', lambda: True)
    assert 'bfloat16' in devices.bfloat16_hint('float32')
    assert devices.bfloat16_hint('bfloat16') == ''
    monkeypatch.setattr(devices, '_cpu_has_amx', lambda: False)
    assert devices.bfloat16_hint('float32') == ''
