"""What crosses between the machines of a step, and how: in the dtype of the wire."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.placement import machine_of

Fetch = Callable[[Sequence[tuple[tf.Variable, str]]], list[tf.Tensor]]  # [(variable, host)]


def carry(values: Sequence[tf.Tensor], hosts: Sequence[str], devices: Sequence[str], dtype: str = 'float32',
          operations: Operations = PLAIN) -> list[tf.Tensor]:
    """Brings float32 tensors from one machine to another; returns them, on the device of each.

    hosts: of each value, the CPU of the machine that it is on. devices: of each, where it is wanted. Within a machine
    values are left where they are. What crosses is cast to `dtype` for the way.
    """
    if operations.carry:
        return operations.carry(carry, values, hosts, devices, dtype)
    carried = []
    for value, host, device in zip(values, hosts, devices, strict=True):
        if crosses(host, device):
            with tf.device(host):  # From a GPU by way of its machine's CPU.
                value = send(tf.identity(value), host, device, dtype)
        carried.append(value)
    return carried


def fetch(ways: Sequence[tuple[tf.Variable, str]], dtype: str, operations: Operations = PLAIN) -> list[tf.Tensor]:
    """The value of each variable on the machine of the host that wants it."""
    values = []
    with tf.control_dependencies(None), tf.name_scope('fetch'):
        for variable, _ in ways:
            with tf.device(variable.device):
                values.append(variable.read_value())
        return carry(values, [variable.device for variable, _ in ways], [host for _, host in ways], dtype, operations)


def send(value: tf.Tensor, host: str, device: str, dtype: str = 'float32', name: str | None = None) -> tf.Tensor:
    """One float32 tensor from `host` on `device`, cast to `dtype` for the way if it leaves the machine."""
    if crosses(host, device):
        with tf.device(host):
            value = tf.cast(value, dtype)
    with tf.device(device):
        return tf.identity(value, name=name) if value.dtype == tf.float32 else tf.cast(value, tf.float32, name=name)


def crosses(host: str, device: str) -> bool:
    """Whether they are on different machines."""
    return machine_of(host) != machine_of(device)


class Reads:
    """Weights read by the hosts that compute with them."""

    def __init__(self, fetch: Fetch):
        """fetch: the function of this file, with the dtype of the wire."""
        self._fetch = fetch

    def read(self, variable: tf.Variable, host: str) -> tf.Tensor:
        """The value of `variable` in this step."""
        value, = self._fetch([(variable, host)])
        with tf.device(host):
            return tf.identity(value, f'{variable.op.name}/read')

    def build_fetches(self) -> tuple[list[tf.Operation], list[tf.Operation]]:
        """Nothing is left to do before the first step or beside each."""
        return [], []


class Copies:
    """Copies of the weights on the hosts that compute with them, so that the way to them overlaps with computing.

    They are no tf.Variables: they are in no collection and no checkpoint, and need no initial value.
    """

    def __init__(self, fetch: Fetch, for_ever: bool = False):
        """fetch: as in Reads. for_ever: the variables never change, and are fetched once per session."""
        self._fetch, self._for_ever = fetch, for_ever
        self._made: list[tuple[tf.Variable, str, tf.Tensor, tf.Tensor]] = []  # Variable, host, copy, what was read.

    def read(self, variable: tf.Variable, host: str) -> tf.Tensor:
        """The value that `variable` had when the step before began, or later."""
        with tf.device(host):
            copy = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=variable.shape,
                                          shared_name=f'{variable.op.name}/fetched', name=f'{variable.op.name}/fetched')
            value = tf.raw_ops.ReadVariableOp(resource=copy, dtype=tf.float32, name=f'{variable.op.name}/read')
        value.set_shape(variable.shape)
        self._made.append((variable, host, copy, value))
        return value

    def build_fetches(self) -> tuple[list[tf.Operation], list[tf.Operation]]:
        """What fills the copies, and what does it in the course of a step."""
        fetched, fills, refills = self._fetch([made[:2] for made in self._made]), [], []
        for (_, host, copy, read), value in zip(self._made, fetched, strict=True):
            with tf.control_dependencies(None), tf.name_scope('fetch'), tf.device(host):
                fills.append(tf.raw_ops.AssignVariableOp(resource=copy, value=value))
                with tf.control_dependencies([read]):  # This step's towers all see the one value.
                    refills.append(tf.raw_ops.AssignVariableOp(resource=copy, value=value))
        return fills, [] if self._for_ever else refills
