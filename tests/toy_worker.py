"""The training part of toy_task.py: model, optimizer, session creator, hooks, loop."""

import contextlib
import os
import random
import time

import tensorflow as tf
from toy_task import RATE, SIZE, batch

from dist import peers as peers_lib
from dist import session as sessions
from dist.fence import Fence
from dist.job import Job, describe_graph
from inception_mg.errors import EXIT_SIGTERM

v1 = tf.compat.v1


class SaveHook(v1.train.SessionRunHook):
    """The chief's checkpoints, every `every` seconds and at the end; around: as of CheckpointHook."""

    def __init__(self, saver, global_step, flags, log, around):
        self._saver, self._global_step, self._flags, self._log, self._around = saver, global_step, flags, log, around
        self._next = time.monotonic() + flags.save_secs

    def after_run(self, run_context, run_values):
        if time.monotonic() >= self._next:
            self.end(run_context.session)
            self._next = time.monotonic() + self._flags.save_secs

    def end(self, session):
        with self._around():
            self._save(session)

    def _save(self, session):
        step_v = int(session.run(self._global_step))
        self._log(f'saving {step_v}')
        time.sleep(self._flags.save_takes)
        self._saver.save(session, os.path.join(self._flags.train_dir, 'model.ckpt'), step_v, write_meta_graph=False)
        self._log(f'saved {step_v}')


class StepHook(v1.train.SessionRunHook):
    """Feeds the worker's batch, prints each step, and stops at the last."""

    def __init__(self, model, flags, worker, stop, log):
        self._model, self._flags, self._worker, self._stop, self._log = model, flags, worker, stop, log

    def before_run(self, run_context):
        time.sleep(self._flags.step_secs + random.random() * self._flags.jitter_secs)
        step_v = int(run_context.session.run(self._model['global_step']))
        inputs, targets = batch(step_v, self._worker)
        if step_v >= self._flags.nan_after:
            raise peers_lib.UserError(f'the loss is nan at step {step_v}')
        return v1.train.SessionRunArgs(self._model['global_step'], feed_dict={
            self._model['inputs']: inputs, self._model['targets']: targets})

    def after_run(self, run_context, run_values):
        step_v = int(run_context.session.run(self._model['global_step']))
        self._log(f'step {step_v}')
        if self._stop() or step_v >= self._flags.max_steps:
            run_context.request_stop()


class FinalHook(v1.train.SessionRunHook):
    """Prints the weights at the end."""

    def __init__(self, model, log):
        self._model, self._log = model, log

    def end(self, session):
        step_v, weights_v, bias_v, *rest = session.run([self._model[name] for name in (
            'global_step', 'weights', 'bias', 'contributed', 'dropped') if name in self._model])
        self._log(f'final {step_v} {" ".join(f"{float(x):.8f}" for x in [*weights_v.ravel(), bias_v])}')
        for name, value in zip(('contributed', 'dropped'), rest, strict=False):
            self._log(f'{name} {value.tolist()}')


def build(flags, cluster, sync_for) -> dict:
    """The graph: y = x w + b on the ps tasks by replica_device_setter, SGD with momentum."""
    setter = v1.train.replica_device_setter(
        ps_tasks=len(cluster.ps), ps_device='/job:ps/device:CPU:0',
        worker_device=f'/job:worker/task:{cluster.index}/device:CPU:0')
    with v1.device(setter), v1.variable_scope('', use_resource=True):
        model = {'global_step': v1.train.get_or_create_global_step(),
                 'inputs': v1.placeholder(tf.float32, [4, SIZE]), 'targets': v1.placeholder(tf.float32, [4])}
        model['weights'] = v1.get_variable('weights', [SIZE, 1], initializer=v1.zeros_initializer())
        model['bias'] = v1.get_variable('bias', [], initializer=v1.zeros_initializer())
        if flags.extra_variable:
            v1.get_variable(flags.extra_variable, [2])
        outputs = tf.squeeze(tf.matmul(model['inputs'], model['weights']), 1) + model['bias']
        model['loss'] = tf.reduce_mean(tf.square(outputs - model['targets']))
        plain = v1.train.MomentumOptimizer(RATE, 0.5)
        gradients = plain.compute_gradients(model['loss'])
        optimizer = sync_for(plain)
        with tf.control_dependencies([model['loss']]):
            model['train_op'] = optimizer.apply_gradients(gradients, model['global_step'])
        if flags.sync:
            model |= {'sync': optimizer, 'contributed': optimizer.contributed, 'dropped': optimizer.dropped}
    return model


def train(flags, cluster, server, config, stop, log) -> int:
    """Trains as one worker; returns the exit code."""
    job = Job({'--setting': flags.setting}, flags.train_dir if cluster.is_chief else '')
    peers = peers_lib.Peers(cluster, job, flags.start_secs, flags.lost_secs, stop, log, flags.status_secs)
    with tf.Graph().as_default(), peers_lib.taking_part(peers):
        peers.enter(server.target)
        model = build(flags, cluster, sync_for(flags, cluster, peers, log))
        sync = model.get('sync')
        with tf.device(f'/job:worker/task:{cluster.index}/device:CPU:0'):
            saver = v1.train.Saver(v1.global_variables())
        graph = describe_graph(v1.global_variables())
        loop_hooks = [sessions.PeersHook(peers, model['global_step'], flags.max_steps),
                      *([sync.hook] if sync else []), StepHook(model, flags, cluster.index, stop, log)]
        if cluster.is_chief:
            initialise = sessions.build_initialise(
                saver, lambda: tf.train.latest_checkpoint(flags.train_dir) or '', v1.global_variables_initializer(),
                sync.reset_op if sync else None)
            creator = sessions.ChiefSessionCreator(peers, server.target, config, graph, initialise)

            def around():
                return peers.saving(sync.updating if sync else contextlib.nullcontext())

            loop_hooks += [SaveHook(saver, model['global_step'], flags, log, around), FinalHook(model, log)]
        else:
            creator = sessions.WorkerSessionCreator(peers, server.target, config, graph)
        with v1.train.MonitoredSession(session_creator=creator, hooks=loop_hooks) as session:
            log('session is ready')
            while not session.should_stop():
                session.run(model['train_op'])
        if stop():
            return EXIT_SIGTERM
    log('left')
    return 0


def sync_for(flags, cluster, peers, log):
    """What wraps the optimizer."""
    fence = Fence(len(cluster.workers), cluster.index, peers.claim.life)
    if not flags.sync:
        return fence.wrap
    from dist.sync import SyncReplicas
    return lambda optimizer: SyncReplicas(
        optimizer, flags.aggregate or len(cluster.workers), len(cluster.workers), cluster.index,
        last_step=flags.max_steps, check=peers.check, stop=peers.stop, log=log, status_secs=flags.status_secs,
        give_up_secs=flags.lost_secs, passed=fence.build_passed)
