"""Claim 8: staleness. The loss against updates and against seconds, asynchronous and synchronous, 1 to 8 workers."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dist.experiments import figures
from dist.experiments.jobs import Client, Clock, run_monitored, start_clients, worker_placement
from dist.experiments.result import Request, Result, Table
from dist.experiments.servers import MOST_WORKERS, run_clients, servers
from dist.experiments.small_model import SIZE, small_loss
from dist.experiments.waiting import build_wait
from inception_mg.config import DataConfig, OptimizerConfig
from inception_mg.data.input_pipeline import evaluation_dataset
from inception_mg.data.progress import progress
from inception_mg.training.image_task import open_training_data
from inception_mg.training.towers import Variables

v1 = tf.compat.v1
SECONDS, BATCH, WATCHED = 0.1, 16, 128  # Emulated compute of a step; images of a step; images of the loss shown.
OPTIMIZER = OptimizerConfig(initial_learning_rate=0.05, moving_average_decay=0.9)
CLAIM = ('Asynchronous workers make more updates per second, each with gradients of older weights; synchronous ones '
         'make fewer, of more images.')


class Images(NamedTuple):
    """images: float32 [n, SIZE, SIZE, 3]; labels: int32 [n]; num_outputs: classes and the background."""

    images: np.ndarray
    labels: np.ndarray
    num_outputs: int


class Curve(NamedTuple):
    """points: (seconds, updates, loss). staleness: mean updates between reading weights and applying a gradient."""

    points: list[tuple[float, int, float]]
    staleness: float


def run(request: Request) -> Result:
    """Trains the small network from the same first weights in every way."""
    counts, seconds = ((1, 2, 4, 8), 60.0) if request.full else ((1, 2, 4, 8), 12.0)
    images = load_images(request.data_dir)
    todo = [(sync, workers) for sync in (False, True) for workers in counts if workers > 1 or not sync]
    curves = {pair: train_once(images, *pair, seconds) for pair in progress(todo, len(todo), 'staleness', 'runs')}
    return summarise(curves, seconds)


def load_images(data_dir: str) -> Images:
    """All training images, made small once; in an order by chance."""
    source = open_training_data(DataConfig(data_dir=data_dir))
    with tf.Graph().as_default(), v1.Session() as session:
        dataset = evaluation_dataset(source.paths, image_size=SIZE, batch_size=source.num_examples,
                                     num_preprocess_threads=2)
        images_v, labels_v, _ = session.run(v1.data.make_one_shot_iterator(dataset).get_next())
    order = np.random.RandomState(3).permutation(len(labels_v))
    return Images(images_v[order], labels_v[order], source.info.num_outputs)


def train_once(images: Images, sync: bool, workers: int, seconds: float) -> Curve:
    """One job in this process; a thread looks at its loss while it trains."""
    def loss_for(batch, tower):
        return small_loss(build_wait(batch[0], lambda: time.sleep(SECONDS)), batch[1], images.num_outputs)

    clients = [Client(worker_placement(k), k, loss_for, batch_size=BATCH, dataset_for=part_of(images, k, workers),
                      optimizer=OPTIMIZER, sync=(workers, workers) if sync else None) for k in range(workers)]
    start_clients(clients)
    watch = Watch(images, first_weights(images))
    with watch:
        staleness = train_synchronously(clients, seconds) if sync else train_asynchronously(clients, seconds)
    for client in [] if sync else clients:
        client.close()
    return Curve(watch.points, staleness)


def part_of(images: Images, worker: int, workers: int):
    """Each worker's own part of the images, shuffled."""
    def make(first: int, readers: int, batch_size: int) -> tf.data.Dataset:
        part = images.images[worker::workers], images.labels[worker::workers]
        return tf.data.Dataset.from_tensor_slices(part).shuffle(2000, seed=worker).repeat().batch(
            batch_size, drop_remainder=True)
    return make


def train_asynchronously(clients: Sequence[Client], seconds: float) -> float:
    """For so many seconds; returns the mean staleness."""
    seen: list[int] = []

    def step_of(client: Client) -> Callable[[], None]:
        with client.graph.as_default(), tf.device(client.step.global_step.device):
            at_read = client.step.global_step.read_value()  # Made beside the reads of the weights.

        def step() -> None:
            read_v, _ = client.session.run([at_read, client.step.train_op])
            seen.append(int(client.session.run(client.step.global_step)) - 1 - int(read_v))
        return step

    run_clients([step_of(client) for client in clients], seconds)
    return statistics.mean(seen)


def train_synchronously(clients: Sequence[Client], seconds: float) -> float:
    """For so many seconds; a gradient is always one of the present weights."""
    clocks = [Clock(client) for client in clients]
    threads = run_monitored(clients, clocks)
    time.sleep(seconds)
    for client in clients:
        client.leave.set()
    for thread in threads:
        thread.join(10)
    return 0.0


def first_weights(images: Images) -> dict[str, np.ndarray]:
    """The same for all jobs, by name."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(5)
        small_loss(v1.placeholder(tf.float32, [1, SIZE, SIZE, 3]), v1.placeholder(tf.int32, [1]), images.num_outputs)
        session.run(v1.global_variables_initializer())
        return session.run({variable.op.name: variable for variable in v1.trainable_variables()})


class Watch:
    """A client that only looks: gives the job its first weights, and while it is entered notes the loss of WATCHED
    images, normalised by themselves, again and again. points: (seconds, updates, loss)."""

    def __init__(self, images: Images, weights: dict[str, np.ndarray]):
        worker = MOST_WORKERS - 1
        placement = worker_placement(worker)
        with tf.Graph().as_default() as graph:
            variables, host = Variables(placement.variables), placement.towers[0].host
            with variables.on(host):
                step = v1.train.create_global_step()
                loss = small_loss(tf.constant(images.images[:WATCHED]), tf.constant(images.labels[:WATCHED]),
                                  images.num_outputs)
            variables.build_fetches()
            self._fetches = [step.read_value(), loss.parts['cross_entropy']]
            given = [variable.assign(weights[variable.op.name], read_value=False) for variable in variables.trainable]
        self._session, self.points, self._over = servers().session(graph, worker), [], threading.Event()
        self._session.run(given)
        self._session.run(self._fetches)  # The first run also prepares the graph.
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> 'Watch':
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._over.set()
        self._thread.join()
        threading.Thread(target=self._session.close, daemon=True).start()

    def _look(self) -> None:
        while not self._over.is_set():
            step_v, loss_v = self._session.run(self._fetches)
            self.points.append((time.monotonic() - self._begun, int(step_v), float(loss_v)))
            self._over.wait(0.3)


def loss_at(curve: Curve, column: int, value: float) -> float | None:
    """The loss at so many seconds (column 0) or updates (1), between the two points around; None beyond the last."""
    places = [point[column] for point in curve.points]
    return float(np.interp(value, places, [point[2] for point in curve.points])) if places[-1] >= value else None


def summarise(curves: dict[tuple[bool, int], Curve], seconds: float) -> Result:
    """A row per way; the losses at equal updates and at equal seconds."""
    fewest = min(curve.points[-1][1] for curve in curves.values())
    updates, moments = (fewest // 2, fewest), (seconds / 2, seconds * 0.95)
    rows = [('synchronous' if sync else 'asynchronous', workers, curve.points[-1][1] / curve.points[-1][0],
             curve.staleness, *(loss_at(curve, 1, value) for value in updates),
             *(loss_at(curve, 0, value) for value in moments)) for (sync, workers), curve in curves.items()]
    emulated = (f'computing waits {SECONDS * 1e3:.0f} ms more than the small network takes; {BATCH} images per worker '
                'and step, gradients, updates and traffic are real')
    figure, (left, right) = figures.panels(
        ['By updates', 'By seconds'], [('updates', f'cross entropy of {WATCHED} training images'), ('seconds', '')],
        f'Emulated: {emulated}', height=3.8)
    colours = dict(zip(sorted({workers for _, workers in curves}), figures.COLOURS, strict=False))
    for (sync, workers), curve in curves.items():
        label = 'one worker' if workers == 1 else f'{workers} {"synchronous" if sync else "asynchronous"}'
        for axis, column in ((left, 1), (right, 0)):
            axis.plot([point[column] for point in curve.points], [point[2] for point in curve.points],
                      color=colours[workers], linestyle='--' if sync else '-', label=label)
    left.set_xlim(0, 2.5 * fewest)
    figures.legend(right)
    most = max(workers for _, workers in curves)
    many, one = curves[False, most], curves[False, 1]
    return Result(CLAIM, [Table(
        ('updates', 'workers', 'updates/s', 'staleness', *(f'loss at {value} updates' for value in updates),
         *(f'loss at {value:.0f} s' for value in moments)), rows, 'Loss at equal updates and at equal times')], [
        f'{most} asynchronous workers make {rows_rate(many) / rows_rate(one):.1f}x the updates of one; their gradients '
        f'are of weights {many.staleness:.1f} updates old. After {fewest} updates their loss is '
        f'{loss_at(many, 1, fewest):.2f} against {loss_at(one, 1, fewest):.2f} of one worker; after {moments[1]:.0f} s '
        f'{loss_at(many, 0, moments[1]):.2f} against {loss_at(one, 0, moments[1]):.2f}.',
        f'{most} synchronous workers reach {loss_at(curves[True, most], 1, fewest):.2f} after {fewest} updates, and '
        f'{loss_at(curves[True, most], 0, moments[1]):.2f} after {moments[1]:.0f} s.'], figure, emulated)


def rows_rate(curve: Curve) -> float:
    """Updates per second."""
    return curve.points[-1][1] / curve.points[-1][0]
