"""What crosses between the machines of a step, and how: small tensors in one piece, in the dtype of the wire."""

from collections.abc import Sequence

import tensorflow as tf

from inception_mg.placement import bytes_of, machine_of

v1 = tf.compat.v1

SMALL = 1 << 18  # Bytes. Sending one more tensor costs the two machines about as much as copying this much.


def carry(values: Sequence[tf.Tensor], hosts: Sequence[str], devices: Sequence[str], dtype: str = 'float32'
          ) -> list[tf.Tensor]:
    """Brings float32 tensors from one machine to another; returns them, on the device of each.

    hosts: of each value, the CPU of the machine that it is on. devices: of each, where it is wanted. Within a machine
    values are left where they are. What crosses is cast to `dtype` for the way. Of what goes from one host to one
    device, the tensors of at most SMALL bytes are joined: half of the tensors of Inception v3 are vectors, and a
    transfer of its own for each took a narrow network a third of its time.
    """
    ways: dict[tuple[str, str], list[int]] = {}
    for number, way in enumerate(zip(hosts, devices, strict=True)):
        if crosses(*way):
            ways.setdefault(way, []).append(number)
    carried = list(values)
    for (host, device), numbers in ways.items():
        small = [k for k in numbers if bytes_of(values[k]) <= SMALL]
        for k in numbers:
            if k not in small or len(small) == 1:
                with tf.device(host):  # From a GPU by way of its machine's CPU.
                    carried[k] = send(tf.identity(values[k]), host, device, dtype)
        if len(small) > 1:
            with tf.device(host):
                joined = tf.concat([tf.reshape(values[k], [-1]) for k in small], 0)
            joined = send(joined, host, device, dtype)
            with tf.device(device):
                parts = tf.split(joined, [values[k].shape.num_elements() for k in small])
                for k, part in zip(small, parts, strict=True):
                    carried[k] = tf.reshape(part, values[k].shape)
    return carried


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
    """Weights read by the hosts that compute with them, the small ones of a ps in one piece.

    Which there are is known only when the towers are built. Until `build_fetches` a read has a placeholder in the
    place of what arrives. (No public call replaces an operation's input; TensorFlow builds its loops by this one.)
    """

    def __init__(self):
        self._made: list[tuple[tf.Variable, str, tf.Tensor]] = []  # Variable, host, what is read.

    def read(self, variable: tf.Variable, host: str) -> tf.Tensor:
        """The value of `variable` in this step."""
        name = f'{variable.op.name}/read'
        if not crosses(variable.device, host):
            with tf.device(variable.device):
                value = variable.read_value()
            return send(value, variable.device, host, name=name)
        with tf.device(host):
            value = tf.identity(v1.placeholder(tf.float32, variable.shape, f'{variable.op.name}/arrived'), name=name)
        self._made.append((variable, host, value))
        return value

    def build_fetches(self, wire_dtype: str) -> tuple[list[tf.Operation], list[tf.Operation]]:
        """Lets the values cross. Nothing is left to do before the first step or beside each."""
        fetched = _fetch([made[:2] for made in self._made], wire_dtype)
        for (*_, read), value in zip(self._made, fetched, strict=True):
            read.op._update_input(0, value)
        self._made = []
        return [], []


class Copies:
    """Copies of the weights on the hosts that compute with them, so that the way to them overlaps with computing.

    They are no tf.Variables: they are in no collection and no checkpoint, and need no initial value.
    """

    def __init__(self):
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

    def build_fetches(self, wire_dtype: str) -> tuple[list[tf.Operation], list[tf.Operation]]:
        """What fills the copies, and what does it in the course of a step."""
        fetched, fills, refills = _fetch([made[:2] for made in self._made], wire_dtype), [], []
        for (_, host, copy, read), value in zip(self._made, fetched, strict=True):
            with tf.control_dependencies(None), tf.name_scope('fetch'), tf.device(host):
                fills.append(tf.raw_ops.AssignVariableOp(resource=copy, value=value))
                with tf.control_dependencies([read]):  # This step's towers all see the one value.
                    refills.append(tf.raw_ops.AssignVariableOp(resource=copy, value=value))
        return fills, refills


def _fetch(ways: Sequence[tuple[tf.Variable, str]], wire_dtype: str) -> list[tf.Tensor]:
    """The value of each variable on the host that wants it."""
    values = []
    with tf.control_dependencies(None), tf.name_scope('fetch'):
        for variable, _ in ways:
            with tf.device(variable.device):
                values.append(variable.read_value())
        return carry(values, [variable.device for variable, _ in ways], [host for _, host in ways], wire_dtype)
