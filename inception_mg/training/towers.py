"""The four verbs of every way of running: read the batches, build the towers, average the
gradients, (and in train_step.py) apply them. Each follows a Placement and asks nothing else.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.errors import UserError
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.model.tower_loss import Statistic, TowerLoss
from inception_mg.placement import CPU, Placement, Tower, host_of
from inception_mg.slices import saved_name
from inception_mg.training import partition, wire
from inception_mg.training.optimizers import build_moves
from inception_mg.training.ps_strategy import LargestFirst, device_setter
from inception_mg.training.task import Batch, DatasetFor, LossFor

v1 = tf.compat.v1


class TowerGradients(NamedTuple):
    """One tower's loss and its part of the mean gradient, d(loss / towers)/d(variable), in the order of
    Variables.trainable; hosts: the machine that read the variable for this tower, and so the one on which the gradient
    is made."""

    loss: TowerLoss
    gradients: list[tf.Tensor]
    hosts: list[str]


class Variables:
    """The variables of a model on the devices of a placement, each read once per host.

    Within `on(host)`, get_variable makes a variable on one of `devices` whatever the enclosing device
    scopes, or finds it again. For a trainable one it returns what the machine of the enclosing device
    scope has read: all towers of that machine share this one read, so a variable crosses once to each,
    and in a tower that is split over machines to the one that computes with it. Others, the moving
    statistics and counters, are returned as they are. Those whose names begin with one of `frozen_scopes`
    are listed in `frozen`, not in `trainable`.
    """

    def __init__(self, devices: Sequence[str], frozen_scopes: Sequence[str] = (), wire_dtype: str = 'float32',
                 prefetch: bool = False, operations: Operations = PLAIN, strategy: LargestFirst | None = None):
        """devices: one device, or the tasks 0, 1, ... of one job; ValueError for other lists. Initial values are
        computed beside the variable. wire_dtype, prefetch: see Placement. strategy: which device; see there."""
        self.trainable: list[tf.Variable] = []
        self.frozen: list[tf.Variable] = []
        self._frozen_scopes = tuple(frozen_scopes)
        strategy = strategy or LargestFirst(len(devices))
        self._slices = partition.Slices(operations.variable_getter, strategy, devices)
        fetch = functools.partial(wire.fetch, dtype=wire_dtype, operations=operations)
        self._ways = (wire.Copies if prefetch else operations.reads or wire.Reads)(fetch)
        self._ways_of_frozen = wire.Copies(fetch, for_ever=True)
        self._reads: dict[tuple[str, str], tf.Tensor] = {}
        self._made: set[str] = set()
        self._setter = device_setter(devices, strategy)

    @contextlib.contextmanager
    def on(self, host: str) -> Iterator[dict[str, tf.Tensor]]:
        """The variable scope and outermost device of a tower beside `host`; yields what the tower has
        read, by variable name."""
        reads: dict[str, tf.Tensor] = {}

        def read_once(getter: Callable, name: str, *args, **kwargs):
            if given := [word for word in ('regularizer', 'constraint') if kwargs.get(word)]:
                raise UserError(f'the variable {name} has a {given[0]}, which would be left out: add its loss to the '
                                "model's, or apply it to the value that get_variable returns")
            # Inner scopes go first: under '/device:GPU:1' the setter would put the variable on the
            # GPU of the ps. Control dependencies go too: a read belongs to the whole step.
            with tf.device(None), v1.device(self._setter), tf.control_dependencies(None):
                parts = self._slices.get(getter, name, *args, **kwargs)
            variable = parts[0]
            if variable.trainable and variable.dtype != tf.float32:
                raise UserError(f'the variable {name} is {variable.dtype.name}: trained variables are float32; cast '
                                'the value that get_variable returns')
            frozen = name.startswith(self._frozen_scopes)
            if name not in self._made and (frozen or variable.trainable):
                self._made.add(name)
                (self.frozen if frozen else self.trainable).extend(parts)
            if not variable.trainable:
                return variable
            host = _host_here()
            reads.update({part.name: self.read(part, host) for part in parts})
            return self._slices.join(name, [reads[part.name] for part in parts], host)

        with v1.variable_scope(v1.get_variable_scope(), custom_getter=read_once, reuse=v1.AUTO_REUSE), tf.device(host):
            yield reads

    def read(self, variable: tf.Variable, host: str) -> tf.Tensor:
        """The value of `variable` as read by `host` in this step."""
        key = (variable.name, host)
        if key not in self._reads:
            kept = variable.op.name.startswith(self._frozen_scopes) and wire.crosses(variable.device, host)
            with tf.device(None), tf.control_dependencies(None):
                self._reads[key] = (self._ways_of_frozen if kept else self._ways).read(variable, host)
        return self._reads[key]

    def refuse_others(self) -> None:
        """Raises UserError for a trainable variable that was not made here: nothing would train it."""
        made = {variable.op.name for variable in (*self.trainable, *self.frozen)}
        others = [variable.op.name for variable in v1.trainable_variables() if variable.op.name not in made]
        if others or not made:
            raise UserError(f'{", ".join(others) or "a model without variables"} would be left out of the training: '
                            'make every variable with tf.compat.v1.get_variable or Layers (tf.Variable and Keras '
                            'layers put theirs outside of the placement)')

    def build_fetches(self) -> tuple[list[tf.Operation], list[tf.Operation]]:
        """Lets what was read cross to the hosts; call it when all towers are built. Under prefetch, returns what fills
        the copies before the first step, and what fetches the weights of the next one during each; the first also for
        frozen weights of another machine; else nothing."""
        (fills, refills), (frozen, _) = self._ways.build_fetches(), self._ways_of_frozen.build_fetches()
        return [*fills, *frozen], refills


def read_batches(placement: Placement, dataset_for: DatasetFor, batch_size: int
                 ) -> tuple[list[Batch], list[tf.Operation]]:
    """Each host reads its own part of the data on its CPU, and deals it to its towers.

    dataset_for(i, n, size) is the dataset of the i-th of n readers in batches of `size`.
    batch_size: images per step of all towers; a multiple of their number. Returns the towers' batches,
    in order, and the operations that start the readers.
    """
    share = batch_size // len(placement.towers)
    batches: dict[Tower, list[Batch]] = {}
    starts = []
    for number, host in enumerate(placement.hosts):
        towers = placement.towers_on(host)
        with tf.device(host), tf.name_scope(f'input_{number}'):
            dataset = dataset_for(number, len(placement.hosts), share * len(towers))
            iterator = v1.data.make_initializable_iterator(dataset)
            starts.append(iterator.initializer)
            batch = iterator.get_next()
            parts = [tf.split(tensor, len(towers)) for tensor in tf.nest.flatten(batch)]
            for tower, *part in zip(towers, *parts, strict=True):
                batches.setdefault(tower, []).append(tf.nest.pack_sequence_as(batch, part))
    return [batches[tower].pop(0) for tower in placement.towers], starts


def build_towers(placement: Placement, variables: Variables, batches: Sequence[Batch],
                 loss_for: LossFor, loss_scale: tf.Tensor | None = None) -> list[TowerGradients]:
    """Builds each tower and its gradients on its devices; all share the variables.

    The gradients are those of the loss times `loss_scale`, divided by the number of towers: a division of the loss
    costs nothing, one of 27 million gradients as much as a sum. Raises UserError for a variable that the loss does not
    depend on, for one that would be left out of the training, and for a loss that is no float32 scalar.
    """
    results = []
    for number, (tower, batch) in enumerate(zip(placement.towers, batches, strict=True)):
        with variables.on(tower.host) as used, tf.name_scope(f'tower_{number}'), tf.device(tower.device):
            loss = loss_for(batch, tower)
            loss = loss if isinstance(loss, TowerLoss) else TowerLoss(loss)
            if loss.total.shape.rank != 0 or loss.total.dtype != tf.float32:
                raise UserError(f'the loss is {loss.total.dtype.name} of shape {loss.total.shape}, not a float32 '
                                'scalar: take the mean over the examples')
            variables.refuse_others()
            # (A variable that this tower has not asked for is refused below.)
            reads = [used[v.name] if v.name in used else variables.read(v, tower.host) for v in variables.trainable]
            total = loss.total if loss_scale is None else loss.total * loss_scale
            total = total / len(placement.towers) if len(placement.towers) > 1 else total
            # Colocated: else the backward operations of a branch run on the tower's own device.
            gradients = v1.gradients(total, reads, colocate_gradients_with_ops=True)
        missing = [saved_name(v) for v, g in zip(variables.trainable, gradients, strict=True) if g is None]
        if missing:
            raise UserError(f'the loss does not depend on {", ".join(dict.fromkeys(missing))}')
        results.append(TowerGradients(loss, gradients, [read.device for read in reads]))
    return results


def average_gradients(variables: Variables, towers: Sequence[TowerGradients], wire_dtype: str = 'float32',
                      operations: Operations = PLAIN) -> list[tuple[tf.Tensor, tf.Variable]]:
    """Means over the towers, the sums of what they contribute: within each host on its CPU, then beside the variable.

    So a host sends one gradient per variable however many towers it has. Every tower weighs the same. wire_dtype: of
    the gradients on their way.
    """
    own: dict[tuple[int, str], list[tf.Tensor]] = {}
    for tower in towers:
        for index, (host, gradient) in enumerate(zip(tower.hosts, tower.gradients, strict=True)):
            own.setdefault((index, host), []).append(gradient)
    sums = []
    for (_, host), gradients in own.items():
        with tf.device(host), tf.name_scope('average'):
            sums.append(tf.add_n(gradients) if len(gradients) > 1 else gradients[0])
    with tf.name_scope('average'):
        sums = wire.carry(sums, [host for _, host in own], [variables.trainable[index].device for index, _ in own],
                          wire_dtype, operations)
    arrived: list[list[tf.Tensor]] = [[] for _ in variables.trainable]
    for (index, _), part in zip(own, sums, strict=True):
        arrived[index].append(part)
    averaged = []
    for variable, parts in zip(variables.trainable, arrived, strict=True):
        with tf.device(variable.device), tf.name_scope('average'):
            averaged.append((tf.add_n(parts) if len(parts) > 1 else parts[0], variable))
    return averaged


def build_statistics_update(statistics: Sequence[Statistic], operations: Operations = PLAIN) -> tf.Operation:
    """Moves each batch-norm statistic beside its variable: v <- decay v + (1 - decay) value."""
    with tf.name_scope('statistics') as scope:
        values = [value for _, value, _ in statistics]
        values = wire.carry(values, [host_of(value.device) for value in values],
                            [variable.device for variable, *_ in statistics], operations=operations)
    return build_moves([(variable, value, 1.0 - decay)
                        for (variable, _, decay), value in zip(statistics, values, strict=True)], scope, operations)


def _host_here() -> str:
    """The CPU of the machine that the enclosing device scopes name."""
    with tf.control_dependencies(None), tf.device(CPU):
        return tf.no_op('here').device
