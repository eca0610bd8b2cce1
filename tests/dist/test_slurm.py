"""dist/slurm.py: the variables are those that Slurm 22.05 gave to real steps, and so are the places of their tasks."""

import pytest

from dist import hosts, slurm
from inception_mg.errors import FlagError


def step(rank, nodes='node[01-02]', tasks='2(x2)', **more):
    return {'SLURM_STEP_NODELIST': nodes, 'SLURM_STEP_TASKS_PER_NODE': tasks, 'SLURM_PROCID': str(rank),
            'SLURM_JOB_ID': '7', 'SLURM_STEP_ID': '0', **{f'SLURM_{name}': value for name, value in more.items()}}


TWO_GROUPS = {'HET_SIZE': '2', 'JOB_NODELIST_HET_GROUP_0': 'g[1-2]', 'JOB_NODELIST_HET_GROUP_1': 'c[1-2]'}
LAYOUTS = [  # What srun was asked for, the variables of the step, and the node of each task.
    ('-n 4 -N 2', step(0, 'c[1-2]', '3,1'), 'c1 c1 c1 c2'),
    ('-n 6 -N 4', step(0, 'c[1-2],g[1-2]', '3,1(x3)'), 'c1 c1 c1 c2 g1 g2'),
    ('-m block', step(0, 'c[1-2],g[1-2]', '3,1(x3)', DISTRIBUTION='block'), 'c1 c1 c1 c2 g1 g2'),
    ('-m cyclic', step(0, 'c[1-2],g[1-2]', '3,1(x3)', DISTRIBUTION='cyclic'), 'c1 c2 g1 g2 c1 c1'),
    ('-m plane=2', step(0, 'c[1-2],g1', '5,1(x2)', DISTRIBUTION='plane', DIST_PLANESIZE='2'), 'c1 c1 c2 g1 c1 c1 c1'),
    ('-N 1 -n 1 : -N 2 -n 4', step(0, 'c[1-2],g1', '1,3,1', HET_SIZE='2', JOB_NODELIST_PACK_GROUP_0='c1',
                                   JOB_NODELIST_PACK_GROUP_1='c2,g1'), 'c1 c2 c2 c2 g1'),
    ('-w g2 -n 1 : -w c1,c2 -n 3', step(0, 'c[1-2],g2', '2,1(x2)', HET_SIZE='2', JOB_NODELIST_PACK_GROUP_0='g2',
                                        JOB_NODELIST_PACK_GROUP_1='c[1-2]'), 'g2 c1 c1 c2'),
    ('--het-group=0,1', step(0, 'c[1-2],g[1-2]', '2(x2),1(x2)', **TWO_GROUPS), 'g1 g2 c1 c1 c2 c2'),
    ('--het-group=1', step(0, 'c[1-2]', '2(x2)', **TWO_GROUPS, DISTRIBUTION='block'), 'c1 c1 c2 c2')]


@pytest.mark.parametrize('environ, places', [layout[1:] for layout in LAYOUTS], ids=[layout[0] for layout in LAYOUTS])
def test_each_task_is_where_slurm_put_it(environ, places):
    layout = slurm.layout_of_step(environ)
    assert [node for node, _ in layout] == places.split()
    for node in set(places.split()):  # A node's tasks are numbered in order of their ranks.
        assert [number for other, number in layout if other == node] == list(range(places.split().count(node)))


def test_the_first_tasks_are_ps_and_the_others_workers():
    first, last = slurm.from_slurm(step(0), 1, 7000), slurm.from_slurm(step(3), 1, 7000)
    assert first.ps == last.ps == ('node01:7000',)
    assert first.workers == ('node01:7001', 'node02:7000', 'node02:7001')
    assert (first.job, last.job, last.index, last.address) == ('ps', 'worker', 2, 'node02:7001')
    assert slurm.from_slurm(step(0), 0, 7000, needs_ps=False).is_chief
    same = hosts.resolve('', '', '', 0, step(3), slurm_ps=1, slurm_first_port=7000)
    assert same == last and hosts.resolve('', '', '', 0, step(3)) is None


def test_steps_of_a_node_have_ports_of_their_own():
    ports = [slurm.derived_port({'SLURM_JOB_ID': str(job), 'SLURM_STEP_ID': str(number)})
             for job in range(5000, 5005) for number in range(5)]
    assert len(set(ports)) == 25 and min(abs(a - b) for a in ports for b in ports if a != b) >= slurm.PORTS_OF_A_STEP
    assert all(20000 <= port <= 32000 - 32 for port in ports)
    assert slurm.from_slurm(step(1), 1).address.endswith(f':{slurm.derived_port(step(0)) + 1}')


@pytest.mark.parametrize('own, words', [
    ({'SLURMD_NODENAME': 'c2'}, 'SLURMD_NODENAME=c2 for task 2 .*would be c1: give srun --distribution=block'),
    ({'SLURM_LOCALID': '1'}, 'SLURM_LOCALID=1 for task 2 of this step.*would be 2'),
    ({'SLURM_GTIDS': '0,2,3'}, 'SLURM_GTIDS=0,2,3 for task 2 .*would be 0,1,2')])
def test_a_task_that_is_elsewhere_than_it_seems_is_refused(own, words):
    own = {'SLURMD_NODENAME': 'c1', 'SLURM_LOCALID': '2', 'SLURM_GTIDS': '0,1,2', **own}
    with pytest.raises(FlagError, match=words):
        slurm.from_slurm({**step(2, 'c[1-2]', '3,1'), **own}, 1)


def test_a_component_that_is_dealt_out_otherwise_is_refused():
    """As srun --het-group=0,1 --distribution=cyclic does it, and does not tell the others."""
    environ = step(3, 'c[1-2],g[1-2]', '2(x2),1(x2)', **TWO_GROUPS, DISTRIBUTION='cyclic')
    with pytest.raises(FlagError, match='SLURMD_NODENAME=c2 for task 3 .*--distribution=block'):
        slurm.from_slurm({**environ, 'SLURMD_NODENAME': 'c2', 'SLURM_GTIDS': '3,5', 'SLURM_LOCALID': '0'}, 2)
    assert slurm.from_slurm({**environ, 'SLURMD_NODENAME': 'c1', 'SLURM_GTIDS': '2,3', 'SLURM_LOCALID': '1'}, 2).index == 1


@pytest.mark.parametrize('text, names', [
    ('a', ['a']), ('a,b', ['a', 'b']), ('node[01-02,05]', ['node01', 'node02', 'node05']), ('b,a', ['b', 'a']),
    ('x,n[8-11]-ib,y', ['x', 'n8-ib', 'n9-ib', 'n10-ib', 'n11-ib', 'y']), ('n[001]', ['n001']), ('', []),
    ('r[1-2]n[3-4]', ['r1n3', 'r1n4', 'r2n3', 'r2n4']), ('r[1-2]n[3,07]x,z', 'r1n3x r1n07x r2n3x r2n07x z'.split())])
def test_expand_nodes(text, names):
    assert slurm.expand_nodes(text) == names


@pytest.mark.parametrize('text', ['r[1-2', 'r1-2]', 'r[[1]]', 'r]1['])
def test_a_list_of_nodes_that_is_cut_is_refused(text):
    with pytest.raises(FlagError, match='a bracket is missing'):
        slurm.expand_nodes(text)


@pytest.mark.parametrize('text', ['2(x3', 'x', '2,', '2(3)', '2 1'])
def test_a_list_of_counts_that_is_none_is_refused(text):
    with pytest.raises(FlagError, match='no list such as'):
        slurm.expand_counts(text)


def test_expand_counts():
    assert slurm.expand_counts('1(x2)') == [1, 1] and slurm.expand_counts('2(x3),1') == [2, 2, 2, 1]


@pytest.mark.parametrize('environ, num_ps, words', [
    ({}, 1, 'SLURM_STEP_NODELIST is not set'), (step(0, tasks='2'), 1, '2 nodes but task counts for 1'),
    (step(0), 0, '0 ps of 4'), (step(0), 4, '4 ps of 4'), (step(4), 1, 'SLURM_PROCID=4, but the step has 4 tasks'),
    (step(0, 'n[1-x]'), 1, r'n\[1-x\], where \[1-x\] is no list'),
    (step(0, DISTRIBUTION='arbitrary'), 1, 'SLURM_DISTRIBUTION=arbitrary does not say which'),
    (step(0, HET_SIZE='2', JOB_NODELIST_HET_GROUP_0='a'), 1, None),
    (step(0, HET_SIZE='2', JOB_NODELIST_HET_GROUP_0='node01'), 1, 'do not list the nodes of the step'),
    ({**step(0), 'SLURM_JOB_ID': 'x'}, 1, 'SLURM_JOB_ID=x is not a number')])
def test_what_cannot_be_resolved_is_one_line(environ, num_ps, words):
    if words is None:
        assert slurm.from_slurm(environ, num_ps).address.startswith('node01:')
        return
    with pytest.raises(FlagError, match=words) as caught:
        slurm.from_slurm(environ, num_ps)
    assert '\n' not in str(caught.value)
