"""What goes into the event files: scalars at each status line, and now and then histograms and images."""

import time
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from inception_mg.slices import saved_name
from inception_mg.training.task import Batch
from inception_mg.training.train_step import TrainStep

v1 = tf.compat.v1
BUCKETS = 30  # As many as TensorBoard draws.


class SummaryHook(v1.train.SessionRunHook):
    """Writes histograms of weights and gradients, and some distorted images, every `every_secs` and at the first step.

    The histograms are counted here from the fetched values. TensorFlow's operations for them are as many as those of
    both towers, and took each chief six seconds to build at every start.
    """

    def __init__(self, step: TrainStep, every_secs: float, writer: v1.summary.FileWriter):
        histograms: dict[str, list] = {}
        for gradient, variable in step.gradients:  # Slices of one variable are counted together.
            histograms.setdefault(f'{saved_name(variable)}/gradient', []).append(gradient)
            histograms.setdefault(saved_name(variable), []).append(variable)
        # Nothing enters the graph's collections.
        images = [v1.summary.image('distorted_images', images, max_outputs=4, collections=[])
                  for images in images_in(step.batch)[:1]]
        self._fetches = {'step': step.global_step, 'images': images, 'histograms': histograms}
        self._every_secs, self._writer, self._next = every_secs, writer, 0.0
        self._global_step = step.global_step

    def after_create_session(self, session, coord):
        # TensorBoard then drops what a life that was lost had written from this step on.
        step_v = int(session.run(self._global_step))
        self._writer.add_session_log(v1.SessionLog(status=v1.SessionLog.START), step_v + 1)

    def before_run(self, run_context):
        self._due = time.monotonic() >= self._next
        return v1.train.SessionRunArgs(self._fetches) if self._due else None

    def after_run(self, run_context, run_values):
        if not self._due:
            return
        fetched_v = run_values.results
        for images_v in fetched_v['images']:
            self._writer.add_summary(images_v, fetched_v['step'])
        whole_v = {tag: np.concatenate([part.ravel() for part in parts])
                   for tag, parts in fetched_v['histograms'].items()}
        self._writer.add_summary(histograms_of(whole_v), fetched_v['step'])
        self._next = time.monotonic() + self._every_secs

    def end(self, session):
        self._writer.flush()


def images_in(batch: Batch) -> list[tf.Tensor]:
    """The tensors of a batch that can be shown: [n, height, width, 1, 3 or 4]."""
    return [tensor for tensor in tf.nest.flatten(batch)
            if tensor.shape.rank == 4 and tensor.shape[3] in (1, 3, 4) and tensor.dtype in (tf.float32, tf.uint8)]


def histograms_of(arrays: dict[str, np.ndarray]) -> v1.Summary:
    """A histogram of each array under its name. Values that are not finite are left out: it is the guards that say
    what happened; and so is an array that has no others."""
    values = []
    for tag, array in arrays.items():
        array = array[np.isfinite(array)].astype(np.float64)
        if array.size:
            counts, edges = np.histogram(array, BUCKETS)
            values.append(v1.Summary.Value(tag=tag, histo=v1.HistogramProto(
                min=array.min(), max=array.max(), num=array.size, sum=array.sum(), sum_squares=np.square(array).sum(),
                bucket_limit=edges[1:], bucket=counts)))
    return v1.Summary(value=values)


def write_settings(writer: v1.summary.FileWriter, step_v: int, settings: Mapping[str, object]) -> None:
    """Writes the settings of a training as a table, which TensorBoard shows under Text."""
    rows = [f'| {name} | {value} |' for name, value in sorted(settings.items())]
    metadata = v1.SummaryMetadata(plugin_data=v1.SummaryMetadata.PluginData(plugin_name='text'))
    text = tf.make_tensor_proto('\n'.join(['| setting | value |', '|---|---|', *rows]))
    writer.add_summary(v1.Summary(value=[v1.Summary.Value(tag='settings', metadata=metadata, tensor=text)]), step_v)


def write_scalars_to(writer: v1.summary.FileWriter) -> Callable[[int, dict[str, float]], None]:
    """Returns the function that writes a dict of scalars at a step."""
    def write(step_v: int, values: dict[str, float]) -> None:
        summary = v1.Summary(value=[v1.Summary.Value(tag=tag, simple_value=value)
                                    for tag, value in values.items()])
        writer.add_summary(summary, step_v)
        writer.flush()
    return write
