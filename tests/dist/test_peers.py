"""Claims, fences and reach, with real servers in this process."""

import json
import socket
import threading
import time

import pytest
import tensorflow as tf

from dist import ps, reach
from dist.board import BoardView, Unreachable, connect_boards
from dist.fence import Fence
from dist.hosts import Cluster
from dist.job import Job
from dist.launch.local import free_ports
from dist.peers import ClusterLost, Peers, Refused
from dist.reach import WrongMachine, unreached
from dist.server import session_config
from inception_mg.errors import EXIT_RETRY

v1 = tf.compat.v1
SERVERS = []  # Kept: the destructor of a server waits for the others.


def serve(cluster: Cluster) -> tf.distribute.Server:
    """A server of this process for one task."""
    server = tf.distribute.Server(tf.train.ClusterSpec(cluster.lists), cluster.job, cluster.index,
                                  config=session_config(cluster))
    SERVERS.append(server)
    return server


class World:
    """Two ps at work, and the target of a worker's server. lines: of the ps."""

    def __init__(self):
        addresses = [f'127.0.0.1:{port}' for port in free_ports(4)]
        self.lists = tuple(addresses[:2]), tuple(addresses[2:])
        self.stopped, self.lines = False, []
        for index in (0, 1):
            task = Cluster(*self.lists, 'ps', index)
            threading.Thread(target=ps.serve, args=(task, serve(task), 600.0, lambda: self.stopped, self.lines.append),
                             daemon=True).start()
        self.targets = [serve(Cluster(*self.lists, 'worker', index)).target for index in (0, 1)]

    def peers(self, index: int, host: str = 'here', **options) -> Peers:
        """A process that is started as worker `index`."""
        peers = Peers(Cluster(*self.lists, 'worker', index), Job({}), 20.0, 20.0, log=self.lines.append, **options)
        peers.claim = peers.claim._replace(host=host)
        peers._claim_text = json.dumps(peers.claim)
        return peers


@pytest.fixture(scope='module')
def world():
    world = World()
    yield world
    world.stopped = True


def gate_passes(world: World, peers: Peers) -> bool:
    """Whether an update of this process would be taken by both ps."""
    index = peers.cluster.index
    with tf.Graph().as_default() as graph:
        gates = [Fence(2, index, peers.claim.life).build_gate(f'/job:ps/task:{k}/device:CPU:0') for k in (0, 1)]
    passed = []
    with v1.Session(world.targets[index], graph=graph, config=session_config(peers.cluster)) as session:
        for gate in gates:
            try:
                session.run(gate)
                passed.append(True)
            except tf.errors.InvalidArgumentError as error:
                assert 'another process has this index' in error.message
                passed.append(False)
    assert len(set(passed)) == 1, passed
    return passed[0]


def test_the_older_chief_learns_that_it_was_replaced(world):
    older, newer = world.peers(0, 'there'), world.peers(0)
    older.enter(world.targets[0])
    older.lives = older.current_lives()
    older.write('ready', older.lives)
    assert gate_passes(world, older)
    older._heartbeat.stop()  # Its cable is cut: nobody hears it any more.
    newer.enter(world.targets[0])
    try:
        assert not gate_passes(world, older) and gate_passes(world, newer)
        newer.lives = newer.current_lives()
        with pytest.raises(Refused, match=f'process {newer.claim.pid} on here is chief now: this one ends') as refusal:
            older.write('ready', [])  # The cable is whole again.
        assert refusal.value.exit_code == EXIT_RETRY
        assert newer.missing_ps() == '' and newer.ready()
        older._look()
        with pytest.raises(Refused, match='this one ends'):
            older.check()
        older.leave(1)
        assert newer.missing_ps() == '' and newer._view.reports[0] == 0
        newer.check()
    finally:
        newer.leave(0)


def test_who_is_not_in_touch_with_all_ps_does_not_beat(world):
    """So that nobody waits for it at the end."""
    peers = world.peers(1)
    peers.enter(world.targets[1])
    peers.join()
    try:
        far = peers._boards[1]
        card, far.card = far.card, lambda: (_ for _ in ()).throw(Unreachable('ps 1 at h:1 (no answer in 5 s)'))
        peers.missing_ps()
        time.sleep(1.5)
        before = peers._view.beats[1]
        time.sleep(2.5)
        assert peers._view.beats[1] == before and peers._view.lives and peers._missing.startswith('ps 1')
        far.card = card
        time.sleep(3)
        assert peers._view.beats[1] > before and peers._missing == ''
    finally:
        peers.leave(0)


def test_ready_is_said_of_the_lives_that_were_initialised(world):
    """Not of a ps that was started anew meanwhile."""
    peers = world.peers(0)
    peers.enter(world.targets[0])
    try:
        peers.lives = [peers.current_lives()[0], 'an earlier life of ps 1']
        peers.write('ready', peers.lives)
        assert peers.missing_ps() == '' and not peers.ready()
        with pytest.raises(tf.errors.AbortedError, match='ps 1 was restarted'):
            peers.check()
    finally:
        peers.leave(0)


def test_quiet_workers_call_the_first_ps_alone(world, monkeypatch):
    peers, calls = world.peers(1), []
    peers.enter(world.targets[1])
    peers.join()
    try:
        for board in peers._boards:
            monkeypatch.setattr(board, '_run_alone', lambda *args, board=board, run=board._run_alone: (
                calls.append(board.name), run(*args))[1])
        time.sleep(3.5)
        assert 2 <= calls.count('ps 0') <= 5 and 'ps 1' not in calls
    finally:
        peers.leave(0)


def test_a_task_at_another_address_than_its_entry(world, monkeypatch):
    lost, own = (f'127.0.0.1:{port}' for port in free_ports(2))
    cluster = Cluster(world.lists[0], (world.lists[1][0], own), 'worker', 1)
    server, hub = serve(cluster), connect_boards(cluster)[0]
    # To the ps, worker 1 is the process that is at its entry in their list. If that is this machine, the name has moved.
    assert '(it still reaches another process there)' in unreached(cluster, server.target, hub, 5)
    monkeypatch.setattr(reach, 'is_here', lambda host: False)
    with pytest.raises(WrongMachine, match='is not at .*, its entry in --worker_hosts: another process answers there'):
        unreached(cluster, server.target, hub, 5)
    workers = [world.lists[1][0], lost]
    far = tf.distribute.Server(tf.train.ClusterSpec({'ps': [f'127.0.0.1:{free_ports(1)[0]}'], 'worker': workers}), 'ps', 0)
    SERVERS.append(far)
    hub.address, hub.card = far.target.removeprefix('grpc://'), lambda: {}
    assert 'ps 0 to reach it at' in unreached(cluster, server.target, hub, 5)  # To this one nobody is there.


def test_a_hub_that_is_gone_is_named():
    cluster = Cluster(('127.0.0.1:9',), ('127.0.0.1:10',), 'worker', 0)
    peers = Peers(cluster, Job({}), 1.0, 1.0, log=lambda line: None)
    assert peers.missing_ps() == 'ps 0 at 127.0.0.1:9 (connection refused)'
    with pytest.raises(ClusterLost, match='chief gave up after 1 s of waiting for ps 0 at 127.0.0.1:9'):
        peers.wait(1.0)
    assert peers._view == BoardView({}, [], [], [], [], [])


def test_a_name_that_cannot_be_looked_up_for_a_while(world, monkeypatch):
    """Whoever is connected goes on; whoever begins has to wait."""
    def unknown(*args):
        raise socket.gaierror(socket.EAI_AGAIN, 'Temporary failure in name resolution')

    peers, late = world.peers(1), world.peers(1)
    assert peers.missing_ps() == ''
    monkeypatch.setattr(socket, 'create_connection', unknown)
    assert peers.missing_ps() == ''
    assert 'temporary failure in name resolution' in late.missing_ps()
