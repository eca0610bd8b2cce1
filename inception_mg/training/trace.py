"""One recorded step of a training: a line that says where its time went and, if asked for, a trace of it.

Recording costs the step that is recorded a few hundredths of its time and no other step anything.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from inception_mg.files import write_text
from inception_mg.training.timeline import StepTrace, chrome_trace

v1 = tf.compat.v1
USUAL_RUN = 10      # Without --trace_step this run of the process is recorded; by then steps have their usual pace.
_NEAR = 100         # Steps before the one to record from which on the global step is read after each run.
_LOOK_SECS = 2.0    # The chief looks this often for the traces of the others.


class TraceHook(v1.train.SessionRunHook):
    """Records one step of this process and says what bounds it; writes train_dir/trace_step_N.json or shares the trace.

    trace_step: the global step to record, or the next one that this process makes; 0 = record the tenth run and
    write nothing; -1 = record nothing. task: this process's, '' without a cluster. train_dir: for the one process
    that writes there. share(packed): gives the trace to that process. collect(): the packed traces that others have
    shared so far; the file is written again when there are more.
    """

    def __init__(self, global_step: tf.Variable, trace_step: int, train_dir: str = '', task: str = '',
                 share: Callable[[bytes], None] = lambda packed: None,
                 collect: Callable[[], Sequence[bytes]] = lambda: (), say: Callable[[str], None] = print):
        self._global_step, self._wanted, self._train_dir, self._task = global_step, trace_step, train_dir, task
        self._share, self._collect, self._say = share, collect, say
        self._runs, self._seen = 0, 0
        self._recording, self._done = False, trace_step < 0
        self._ended, self._periods = 0.0, []
        self._own, self._others, self._next_look = None, 0, 0.0

    def after_create_session(self, session, coord):
        self._seen, self._ended = int(session.run(self._global_step)), 0.0

    def before_run(self, run_context):
        self._recording = not self._done and self._is_due()
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE) if self._recording else None
        return v1.train.SessionRunArgs(self._global_step, options=options)

    def after_run(self, run_context, run_values):
        now, self._runs = time.monotonic(), self._runs + 1
        if self._done:
            if self._own and now >= self._next_look:
                self._merge()
            return
        # What the run itself fetched may be from before its update.
        near = self._recording or self._wanted and run_values.results + _NEAR >= self._wanted
        self._seen = int(run_context.session.run(self._global_step)) if near else int(run_values.results)
        period, self._ended = now - self._ended if self._ended else 0.0, now
        if self._recording:
            self._done = True
            self._keep(run_values.run_metadata.step_stats, period)
        elif period:
            self._periods = [*self._periods, period][-5:]

    def end(self, session):
        if self._own:
            self._merge()

    def _is_due(self) -> bool:
        return self._seen + 1 >= self._wanted if self._wanted else self._runs + 1 == USUAL_RUN

    def _keep(self, stats, period: float) -> None:
        """Says the verdict. A recorded step takes longer than usual: how long one takes is that of those before."""
        usual = min([period, statistics.median(self._periods)] if self._periods else [period])
        trace = StepTrace.of(self._task, self._seen, usual, stats)
        self._say(f'step {self._seen} took {trace.shares().line()}')
        if not self._wanted:
            return
        if self._train_dir:
            self._own = trace
            self._say(f'wrote {self._write([trace])} for Perfetto or chrome://tracing')
        else:
            self._share(trace.pack())

    def _merge(self) -> None:
        """Writes the file again if others have shared more traces since."""
        packed = self._collect()
        if len(packed) > self._others:
            self._others = len(packed)
            self._write([self._own, *map(StepTrace.unpack, packed)])
        self._next_look = time.monotonic() + _LOOK_SECS

    def _write(self, traces: Sequence[StepTrace]) -> str:
        path = os.path.join(self._train_dir, f'trace_step_{self._wanted}.json')
        write_text(path, chrome_trace(traces))
        return path
