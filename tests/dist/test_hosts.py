"""Host lists, TF_CONFIG and Slurm: who is who, and one line for whatever is wrong."""

import json

import pytest

from dist import hosts
from inception_mg.errors import EXIT_FLAGS, FlagError

PS, WORKERS = ('a:1', 'b:2'), ('c:3', 'd:4', 'e:5')


def config(cluster, kind=None, index=0) -> str:
    return json.dumps({'cluster': cluster, 'task': {'type': kind, 'index': index}})


def test_flags():
    cluster = hosts.from_flags('a:1, b:2,', ' c:3,d:4 ,e:5', 'worker', 1)
    assert (cluster.ps, cluster.workers, cluster.address, cluster.is_chief) == (PS, WORKERS, 'd:4', False)
    assert cluster.device_filters == ['/job:ps', '/job:worker/task:1']
    assert hosts.Cluster(PS, WORKERS, 'worker', 0).is_chief
    assert hosts.Cluster(PS, WORKERS, 'ps', 1).device_filters == ['/job:ps/task:1']


def test_ipv6():
    cluster = hosts.from_flags('[fe80::2]:2222', '[fe80::1]:2223', 'ps', 0)
    assert hosts.split_address(cluster.address, '') == ('fe80::2', 2222)


@pytest.mark.parametrize('ps, workers, job, index, words', [
    ('', 'c:3', 'ps', 0, '--ps_hosts is empty'),
    (',', 'c:3', 'ps', 0, '--ps_hosts is empty'),
    ('a:1', '', 'ps', 0, '--worker_hosts is empty'),
    ('a:1', 'c:3', '', 0, '--job_name is empty'),
    ('a', 'c:3', 'ps', 0, "ps 0: 'a' is not host:port"),
    ('a:1', 'c:3,d', 'ps', 0, "worker 1: 'd' is not host:port"),
    ('a:0', 'c:3', 'ps', 0, 'port of'),
    ('a:65536', 'c:3', 'ps', 0, '1 to 65535'),
    ('a:x', 'c:3', 'ps', 0, 'not host:port'),
    ('http://a:1', 'c:3', 'ps', 0, 'has a scheme'),
    ('grpc://a:1', 'c:3', 'ps', 0, 'has a scheme'),
    ('::1:22', 'c:3', 'ps', 0, 'IPv6 as'),
    ('a:1,,b:2', 'c:3', 'ps', 0, 'entry 1 is empty'),
    ('a:1 b:2', 'c:3', 'ps', 0, 'not host:port'),
    ('a:1', 'c:3', 'ps', 1, 'there is no ps 1'),
    ('a:1', 'c:3', 'worker', -1, 'there is no worker -1'),
    ('a:1', 'c:3,a:1', 'worker', 0, 'ps 0 and worker 1 have the same address a:1'),
    ('localhost:1', '127.0.0.1:1', 'worker', 0, 'same address'),
    ('a:1', 'c:3', 'chief', 0, "unknown job 'chief': use one of ps, worker, evaluator"),
])
def test_bad_flags_are_refused_in_one_line(ps, workers, job, index, words):
    with pytest.raises(FlagError) as caught:
        hosts.from_flags(ps, workers, job, index)
    assert words in str(caught.value) and '\n' not in str(caught.value)
    assert caught.value.exit_code == EXIT_FLAGS


@pytest.mark.parametrize('text, job, index, chief, address', [
    (config({'ps': ['a:1'], 'worker': ['c:3', 'd:4']}, 'worker', 1), 'worker', 1, False, 'd:4'),
    (config({'ps': ['a:1'], 'worker': ['c:3', 'd:4']}, 'worker', '0'), 'worker', 0, True, 'c:3'),
    (config({'ps': ['a:1'], 'chief': ['z:9'], 'worker': ['c:3', 'd:4']}, 'worker', 1), 'worker', 2, False, 'd:4'),
    (config({'ps': ['a:1'], 'chief': ['z:9'], 'worker': ['c:3']}, 'chief', 0), 'worker', 0, True, 'z:9'),
    (config({'ps': ['a:1'], 'master': ['z:9'], 'worker': ['c:3']}, 'master', '0'), 'worker', 0, True, 'z:9'),
    (config({'ps': ['a:1'], 'chief': ['z:9']}, 'ps', 0), 'ps', 0, False, 'a:1'),
    (config({'ps': {'0': 'a:1', '1': 'b:2'}, 'worker': {'1': 'd:4'}}, 'worker', '1'), 'worker', 1, False, 'd:4'),
    (config({'ps': {0: 'a:1'}, 'chief': {'0': 'z:9'}, 'worker': {'2': 'd:4'}}, 'worker', 2), 'worker', 3, False, 'd:4'),
    (config({'ps': ['a:1'], 'chief': ['z:9']}, 'evaluator', 0), 'evaluator', 0, False, ''),
    (config({'ps': ['a:1'], 'worker': ['c:3'], 'evaluator': ['v:1']}, 'evaluator', 0), 'evaluator', 0, False, ''),
])
def test_tf_config(text, job, index, chief, address):
    cluster = hosts.from_tf_config(text)
    assert (cluster.job, cluster.index, cluster.is_chief, cluster.address) == (job, index, chief, address)


@pytest.mark.parametrize('text, words', [
    ('{"cluster": ', 'TF_CONFIG is not JSON'),
    ('[]', 'TF_CONFIG must be an object'),
    ('{}', "TF_CONFIG's cluster must be an object"),
    (json.dumps({'cluster': {'ps': ['a:1'], 'worker': ['c:3']}}), "TF_CONFIG's task must be an object"),
    (config({'ps_hosts': ['a:1'], 'worker': ['c:3']}, 'ps'), "unknown job 'ps_hosts': known are chief, master, worker"),
    (config({'ps': ['a:1'], 'worker': ['c:3']}, 'boss'), "unknown job 'boss'"),
    (config({'ps': ['a:1'], 'worker': ['c:3']}, 'worker', 'x'), "task index 'x' is not a number"),
    (config({'ps': ['a:1'], 'worker': ['c:3']}, 'worker', -1), 'not a number from 0'),
    (config({'ps': ['a:1'], 'worker': ['c:3']}, 'worker', 3), 'there is no worker 3'),
    (config({'ps': ['a:1'], 'worker': ['c:3']}, 'chief', 0), 'its cluster does not list'),
    (config({'ps': ['a:1'], 'chief': ['c:3'], 'master': ['d:4']}, 'chief', 0), '2 chiefs'),
    (config({'worker': ['c:3', 'd:4']}, 'worker', 0), 'the cluster has no ps'),
    (config({'ps': 'a:1', 'worker': ['c:3']}, 'ps', 0), "list of ps must be an object"),
    (config({'ps': [7], 'worker': ['c:3']}, 'ps', 0), 'a host of ps must be str'),
    (config({'ps': ['a:1'], 'worker': {'1': 'd:4'}}, 'worker', 0), 'which is this task'),
])
def test_bad_tf_config_is_refused_in_one_line(text, words):
    with pytest.raises(FlagError) as caught:
        hosts.from_tf_config(text)
    assert words in str(caught.value) and '\n' not in str(caught.value)


def sparse(kind, index=0, **cluster) -> dict[str, str]:
    """The environment of a task under enableDynamicWorker of a TFJob."""
    return {'TF_CONFIG': config({'worker': {}, 'ps': [], **cluster}, kind, index)}


@pytest.mark.parametrize('environ, job, index, address', [
    (sparse('ps', 1, ps=['b:2']), 'ps', 1, 'b:2'), (sparse('ps', 0, ps=['a:1']), 'ps', 0, 'a:1'),
    (sparse('worker', 1, ps=list(PS), worker={'1': 'e:5'}), 'worker', 2, 'e:5'),
    (sparse('chief'), 'worker', 0, 'c:3'), (sparse('master'), 'worker', 0, 'c:3'),
    (sparse('evaluator'), 'evaluator', 0, ''),
    ({'TF_CONFIG': config({'ps': list(PS), 'chief': ['c:3'], 'worker': ['d:4', 'e:5']}, 'worker', 0)}, 'worker', 1, 'd:4')])
def test_a_sparse_tf_config_says_which_of_the_listed_hosts_this_task_is(environ, job, index, address):
    cluster = hosts.resolve('a:1,b:2', 'c:3,d:4,e:5', '', 0, environ)
    assert (cluster.ps, cluster.workers) == (PS, WORKERS)
    assert (cluster.job, cluster.index, cluster.address) == (job, index, address)


@pytest.mark.parametrize('environ, workers, words', [
    (sparse('ps', 1, ps=['b:2']), '', 'tells ps 1 of no worker .* give every task the same --ps_hosts and --worker_hosts'),
    (sparse('chief'), '', 'tells chief 0 of no worker'),
    (sparse('worker', 0, ps=list(PS), worker={'0': 'x:9'}), 'c:3,d:4', 'is at x:9, which is not in --worker_hosts: c:3'),
    (sparse('chief', chief=['x:9']), 'c:3,d:4', 'is at x:9, which is not in the first of --worker_hosts: c:3$'),
    (sparse('worker', 5), 'c:3,d:4', 'worker 5, is at no address')])
def test_a_sparse_tf_config_that_leaves_open_who_is_who(environ, workers, words):
    with pytest.raises(FlagError, match=words):
        hosts.resolve('a:1,b:2' if workers else '', workers, '', 0, environ)


def test_an_evaluator_needs_no_cluster():
    assert hosts.resolve('', '', '', 0, sparse('evaluator')).job == 'evaluator'


def test_resolve_prefers_flags():
    environ = {'TF_CONFIG': config({'ps': ['x:1'], 'worker': ['y:2']}, 'ps', 0)}
    assert hosts.resolve('a:1', 'c:3', 'worker', 0, environ).address == 'c:3'
    assert hosts.resolve('', '', '', 0, environ).address == 'x:1'
    assert hosts.resolve('', '', '', 0, {}) is None


def test_difference():
    mine = hosts.Cluster(PS, WORKERS, 'worker', 0)
    assert mine.difference(mine.lists) == ''
    assert mine.difference({'ps': ['a:1', 'x:2'], 'worker': list(WORKERS)}) == 'ps 1 is x:2 there and b:2 here'
    assert mine.difference({'ps': list(PS), 'worker': ['c:3']}) == 'the worker list has 1 hosts there and 3 here'
    sparse = hosts.Cluster(PS, ('', 'd:4'), 'worker', 1)
    assert sparse.difference(mine.lists) == '' and mine.difference(sparse.lists) == ''


@pytest.mark.parametrize('ps, workers, words', [
    ('localhost:1', 'b:2,c:3', 'ps 0 is at localhost, which on every machine is that machine itself'),
    ('a:1', 'b:2,127.0.0.2:3', 'worker 1 is at 127.0.0.2'), ('a:1', '[::1]:2', 'worker 0 is at ::1'),
    ('0.0.0.0:1', 'b:2', 'ps 0: .* is every interface'), ('a:1', '[::]:2', 'worker 0: .* is every interface'),
    ('a:1', '0:2', 'is every interface'), ('*:1', 'b:2', r"ps 0: '\*:1' has '\*', which no name"),
    ('a:1', 'n{1-2}:2', r"worker 0: .* has '\{'"), ('[zz]:1', 'b:2', r'\[zz\] in .* is no IPv6 address'),
    ('[1.2.3.4]:1', 'b:2', 'is no IPv6 address')])
def test_addresses_that_others_cannot_reach(ps, workers, words):
    with pytest.raises(FlagError, match=words):
        hosts.from_flags(ps, workers, 'ps', 0)
    hosts.from_flags('localhost:1', '127.0.0.1:2,[::1]:3', 'ps', 0)  # All on this machine.
