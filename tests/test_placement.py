"""Placements are values: what each way of running puts where."""

from types import SimpleNamespace

import pytest

from inception_mg.placement import (
    Placement,
    Tower,
    between_graph,
    bytes_of,
    describe,
    in_graph,
    multi_gpu,
    one_device,
    short_device,
    split_model,
    task_name,
)

CPU, GPUS = '/device:CPU:0', [f'/device:GPU:{number}' for number in range(4)]


def test_one_device():
    assert one_device() == Placement((CPU,), (Tower(CPU, CPU),))
    assert one_device(GPUS[0]) == multi_gpu(GPUS[:1])


def test_multi_gpu_puts_a_tower_on_each_gpu_and_variables_on_the_cpu():
    placement = multi_gpu(GPUS[:2])
    assert placement == Placement((CPU,), (Tower(GPUS[0], CPU), Tower(GPUS[1], CPU)))
    assert placement.hosts == (CPU,)


def test_weights_are_fetched_in_the_step_itself_unless_asked_otherwise():
    assert not one_device().prefetch and one_device().wire_dtype == 'float32'


def test_devices_are_those_that_compute():
    assert multi_gpu(GPUS[:2]).devices == {*GPUS[:2]}
    assert split_model([GPUS[:2], GPUS[2:3]], 'stages').devices == {*GPUS[:3]}  # '' of an unsplit tower is none.


def test_split_model():
    groups = [GPUS[:2], GPUS[2:]]
    assert split_model(groups, 'branches').towers[1] == Tower(GPUS[2], CPU, branches=tuple(GPUS[2:]))
    assert split_model(groups, 'stages').towers[0] == Tower(GPUS[0], CPU, stages=tuple(GPUS[:2]))
    with pytest.raises(ValueError, match='rows'):
        split_model(groups, 'rows')


def test_in_graph_has_towers_on_every_worker():
    placement = in_graph(1, [GPUS[:2], GPUS[:1]])
    assert placement.variables == ('/job:ps/task:0/device:CPU:0',)
    assert [tower.device for tower in placement.towers] == [
        '/job:worker/task:0/device:GPU:0', '/job:worker/task:0/device:GPU:1', '/job:worker/task:1/device:GPU:0']
    assert placement.hosts == ('/job:worker/task:0/device:CPU:0', '/job:worker/task:1/device:CPU:0')
    assert len(placement.towers_on(placement.hosts[0])) == 2


def test_in_graph_split():
    tower, = in_graph(1, [GPUS[:2]], 'stages').towers
    assert tower.stages == ('/job:worker/task:0/device:GPU:0', '/job:worker/task:0/device:GPU:1')


def test_in_graph_split_by_some_of_the_devices_of_each_worker():
    first, second = in_graph(0, [GPUS], 'branches', split_devices=2).towers
    assert first.branches == ('/job:worker/task:0/device:GPU:0', '/job:worker/task:0/device:GPU:1')
    # It begins on the first device of its group, not on the last.
    assert second.device == second.branches[0] == '/job:worker/task:0/device:GPU:2'
    assert in_graph(0, [GPUS]).variables == ('/job:worker/task:0/device:CPU:0',)


def test_in_graph_over_hosts_has_a_device_of_every_worker_in_each_tower():
    placement = in_graph(1, [GPUS[:2], GPUS[:2]], 'stages', over_hosts=True)
    assert [tower.stages for tower in placement.towers] == [
        (f'/job:worker/task:0{gpu}', f'/job:worker/task:1{gpu}') for gpu in GPUS[:2]]
    # The first stage reads the images: the tower is at home on its machine.
    assert [(tower.device, tower.host) for tower in placement.towers] == [
        (f'/job:worker/task:0{gpu}', f'/job:worker/task:0{CPU}') for gpu in GPUS[:2]]
    with pytest.raises(ValueError):
        in_graph(1, [GPUS[:2], GPUS[:1]], 'stages', over_hosts=True)


def test_between_graph_has_only_its_own_towers():
    placement = between_graph(2, 3, one_device().towers)
    assert placement.variables == ('/job:ps/task:0/device:CPU:0', '/job:ps/task:1/device:CPU:0')
    assert placement.towers == (Tower('/job:worker/task:3/device:CPU:0', '/job:worker/task:3/device:CPU:0'),)


def test_between_graph_splits_as_the_machine_does():
    worker = '/job:worker/task:1'
    for by in ('branches', 'stages'):
        placement = between_graph(1, 1, split_model([GPUS[:2], GPUS[2:]], by).towers)
        assert [getattr(tower, by) for tower in placement.towers] == [
            tuple(worker + gpu for gpu in group) for group in (GPUS[:2], GPUS[2:])]
        assert placement.hosts == (worker + CPU,)


def test_a_placement_is_a_value():
    assert multi_gpu(GPUS) == multi_gpu(GPUS)
    assert hash(multi_gpu(GPUS)) == hash(multi_gpu(GPUS))
    assert multi_gpu(GPUS) != multi_gpu(GPUS[:2])


def test_describe_names_every_device():
    text = '\n'.join(describe(split_model([GPUS[:2], GPUS[2:]], 'branches')))
    assert all(gpu in text for gpu in GPUS) and 'variables on /device:CPU:0' in text
    assert 'tower 1: branches over /device:GPU:2, /device:GPU:3' in text
    assert describe(multi_gpu(GPUS[:2]))[1:] == [
        f'tower {number} on {GPUS[number]}, input and averaging on {CPU}' for number in range(2)]


def test_names_for_people():
    assert task_name('/job:ps/task:1/device:CPU:0') == task_name('/job:ps/replica:0/task:1/device:CPU:0') == 'ps 1'
    assert task_name(CPU) == 'this machine'
    assert short_device('/job:localhost/replica:0/task:0/device:CPU:1') == '/device:CPU:1'
    assert short_device('/job:worker/replica:0/task:2/device:GPU:0') == '/job:worker/task:2/device:GPU:0'


def test_bytes_of_is_elements_by_size():
    shape, dtype = SimpleNamespace(num_elements=lambda: 12), SimpleNamespace(size=4)
    assert bytes_of(SimpleNamespace(shape=shape, dtype=dtype)) == 48
