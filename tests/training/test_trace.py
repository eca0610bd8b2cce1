"""The recorded step: shares that add up, a file that trace viewers open, and whose traces are in it."""

import json

import pytest
import tensorflow as tf
import toy_model

from inception_mg.placement import multi_gpu
from inception_mg.training.step_records import Event, Transfer
from inception_mg.training.task import Task
from inception_mg.training.timeline import StepTrace, chrome_trace
from inception_mg.training.trace import USUAL_RUN, TraceHook
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
WORKER, PS = '/job:worker/task:0', '/job:ps/task:0'
CPU = '/device:CPU:0'


def operation(kind: str, start: float, end: float, device: str = WORKER + CPU) -> Event:
    return Event(f'some/{kind}', kind, device, int(start * 1e6), int(end * 1e6))


def moved(start: float, end: float, count: int = 1000) -> Transfer:
    return Transfer('w', PS + CPU, WORKER + CPU, count, int(start * 1e6), int(end * 1e6))


def test_each_moment_counts_once_and_computing_comes_first():
    trace = StepTrace(WORKER, 7, 10.0, [operation('Conv2D', 3, 6), operation('MatMul', 4, 5),
                                        operation('IteratorGetNext', 0, 2.5)], [moved(2, 4), moved(6, 7)])
    shares = trace.shares()
    # Computing 3 to 6; the wire alone 2 to 3 and 6 to 7; the input alone 0 to 2; nothing from 7 to 10.
    assert shares[:] == pytest.approx((10, 0.3, 0.2, 0.2, 0.3))


@pytest.mark.parametrize('events, wire, bound', [
    ([('Conv2D', 0, 9)], [], 'compute-bound'),
    ([('Conv2D', 0, 1)], [(1, 9)], 'wire-bound'),
    ([('IteratorGetNext', 0, 8), ('Conv2D', 8, 9)], [], 'input-bound'),
    ([('Conv2D', 0, 2)], [], 'mostly waiting')])
def test_the_largest_share_is_the_verdict(events, wire, bound):
    trace = StepTrace(WORKER, 7, 9.0, [operation(*event) for event in events], [moved(*move) for move in wire])
    assert trace.shares().bound == bound
    assert trace.shares().line().startswith('9 s: compute ')


def test_control_edges_and_standing_operations_take_no_time():
    trace = StepTrace(WORKER, 7, 4.0, [operation('NoOp', 0, 4), operation('_Recv', 0, 4)], [moved(0, 4, count=0)])
    assert trace.shares().waiting == 1


def test_a_trace_survives_packing():
    trace = StepTrace(WORKER, 7, 1.5, [operation('Conv2D', 0, 1)], [moved(1, 2)])
    assert StepTrace.unpack(trace.pack()) == trace


def test_one_file_has_a_process_per_task_and_every_transfer():
    other = '/job:worker/task:1'
    traces = [StepTrace(WORKER, 7, 2.0, [operation('Conv2D', 0, 1), operation('Sub', 0, 1, PS + CPU)], [moved(1, 2)]),
              StepTrace(other, 8, 2.0, [operation('Conv2D', 0, 2, other + CPU)], [])]
    entries = json.loads(chrome_trace(traces))['traceEvents']
    names = {entry['args']['name'] for entry in entries if entry['name'] == 'process_name'}
    assert names == {'ps 0', 'ps 0, wire', 'worker 0', 'worker 0, wire', 'worker 1'}
    bars = [entry for entry in entries if entry['ph'] == 'X']
    assert min(entry['ts'] for entry in bars) == 0
    assert [entry['args']['bytes'] for entry in bars if entry['name'].endswith('from ps 0')] == [1000]
    assert {entry['ph'] for entry in entries if entry.get('cat') == 'transfer'} == {'s', 'f'}
    for entry in (entry for entry in entries if entry['ph'] in 'sf'):  # Viewers drop arrows that end outside of bars.
        assert any(bar['pid'] == entry['pid'] and bar['tid'] == entry['tid']
                   and bar['ts'] <= entry['ts'] < bar['ts'] + bar['dur'] for bar in bars)
    assert [entry['args']['bytes'] for entry in entries if entry['ph'] == 'C'] == [1000, 0]
    assert any(entry['name'].startswith('step 7 took 2 s: compute') for entry in bars)


def test_bars_on_one_row_do_not_overlap():
    trace = StepTrace('', 1, 1.0, [operation('Conv2D', 0, 2, CPU), operation('MatMul', 1, 3, CPU),
                                   operation('Relu', 2, 3, CPU)], [])
    bars = [entry for entry in json.loads(chrome_trace([trace]))['traceEvents'] if entry['ph'] == 'X']
    rows = {}
    for bar in sorted(bars, key=lambda bar: bar['ts']):
        row = rows.setdefault((bar['pid'], bar['tid']), [])
        assert not row or row[-1]['ts'] + row[-1]['dur'] <= bar['ts']
        row.append(bar)
    assert len(rows) == 3  # The step, and two rows of the device.


def train(hook_of, steps: int) -> list[str]:
    """Trains the toy model with a TraceHook; returns what it said."""
    said: list[str] = []
    placement = multi_gpu(['/device:CPU:1', '/device:CPU:2'])
    with tf.Graph().as_default():
        step = build_train_step(placement, Task(toy_model.dataset_for(8), toy_model.toy_loss, 8, 8,
                                                make_optimizer=toy_model.make_optimizer))
        scaffold = v1.train.Scaffold(local_init_op=tf.group(step.start_input, v1.local_variables_initializer()))
        creator = v1.train.ChiefSessionCreator(scaffold, config=v1.ConfigProto(device_count={'CPU': 3}))
        hooks = [hook_of(step.global_step, said.append), v1.train.StopAtStepHook(last_step=steps)]
        with v1.train.MonitoredSession(creator, hooks) as session:
            while not session.should_stop():
                session.run(step.train_op)
    return said


def test_the_wanted_step_is_traced_once(tmp_path):
    said = train(lambda step, say: TraceHook(step, 4, str(tmp_path), say=say), USUAL_RUN + 2)
    assert len(said) == 2 and said[0].startswith('step 4 took ')
    trace = json.loads((tmp_path / 'trace_step_4.json').read_text())
    rows = {entry['args']['name'] for entry in trace['traceEvents'] if entry['name'] == 'thread_name'}
    assert {'CPU:0', 'CPU:1', 'CPU:2', 'step'} <= rows
    assert [path.name for path in tmp_path.iterdir()] == ['trace_step_4.json']


def test_without_a_wanted_step_only_the_verdict_is_said(tmp_path):
    said = train(lambda step, say: TraceHook(step, 0, str(tmp_path), say=say), USUAL_RUN + 2)
    assert len(said) == 1 and said[0].startswith(f'step {USUAL_RUN} took ') and 'waiting' in said[0]
    assert list(tmp_path.iterdir()) == []
    assert train(lambda step, say: TraceHook(step, -1, str(tmp_path), say=say), USUAL_RUN + 2) == []


def test_the_chief_adds_what_others_have_shared(tmp_path):
    shared: list[bytes] = []
    train(lambda step, say: TraceHook(step, 2, '', '/job:worker/task:1', share=shared.append, say=say), 3)
    assert len(shared) == 1
    train(lambda step, say: TraceHook(step, 2, str(tmp_path), collect=lambda: shared, say=say), 4)
    verdicts = json.loads((tmp_path / 'trace_step_2.json').read_text())['otherData']
    assert list(verdicts) == ['this machine', 'worker 1']
