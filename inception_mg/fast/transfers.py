"""What crosses between machines in one piece: many small tensors, also when it is known late which they are."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from inception_mg.placement import bytes_of, machine_of

v1 = tf.compat.v1

SMALL = 1 << 18  # Bytes. Sending one more tensor costs the two machines about as much as copying this much.


def carry(one_by_one: Callable, values: Sequence[tf.Tensor], hosts: Sequence[str], devices: Sequence[str],
          dtype: str = 'float32') -> list[tf.Tensor]:
    """As wire.carry, which `one_by_one` is, with those that go from one host to one device joined.

    Those of at most SMALL bytes, that is: half of the tensors of Inception v3 are vectors, and a transfer of its own
    for each took a narrow network a third of its time.
    """
    ways: dict[tuple[str, str], list[int]] = {}
    for number, (value, host, device) in enumerate(zip(values, hosts, devices, strict=True)):
        if machine_of(host) != machine_of(device) and bytes_of(value) <= SMALL:
            ways.setdefault((host, device), []).append(number)
    ways = {way: numbers for way, numbers in ways.items() if len(numbers) > 1}
    joined = []
    for (host, _), numbers in ways.items():
        with tf.device(host):
            joined.append(tf.concat([tf.reshape(values[k], [-1]) for k in numbers], 0))
    alone = sorted(set(range(len(values))) - {k for numbers in ways.values() for k in numbers})
    came = one_by_one([*joined, *(values[k] for k in alone)],
                      [*(host for host, _ in ways), *(hosts[k] for k in alone)],
                      [*(device for _, device in ways), *(devices[k] for k in alone)], dtype)
    carried = dict(zip(alone, came[len(ways):], strict=True))
    for ((_, device), numbers), together in zip(ways.items(), came, strict=False):
        with tf.device(device):
            parts = tf.split(together, [values[k].shape.num_elements() for k in numbers])
            carried |= {k: tf.reshape(part, values[k].shape) for k, part in zip(numbers, parts, strict=True)}
    return [carried[k] for k in range(len(values))]


class LateReads:
    """As wire.Reads, with the small weights of a ps in one piece.

    Which there are is known only when the towers are built. Until `build_fetches` a read has a placeholder in the
    place of what arrives. (No public call replaces an operation's input; TensorFlow builds its loops by this one.)
    """

    def __init__(self, fetch: Callable):
        """fetch: brings variables to hosts, see wire.Reads."""
        self._fetch = fetch
        self._made: list[tuple[tf.Variable, str, tf.Tensor]] = []  # Variable, host, what is read.

    def read(self, variable: tf.Variable, host: str) -> tf.Tensor:
        """The value of `variable` in this step."""
        near = machine_of(variable.device) == machine_of(host)
        with tf.device(variable.device if near else host):
            value = variable.read_value() if near else v1.placeholder(
                tf.float32, variable.shape, f'{variable.op.name}/arrived')
        with tf.device(host):
            value = tf.identity(value, f'{variable.op.name}/read')
        if not near:
            self._made.append((variable, host, value))
        return value

    def build_fetches(self) -> tuple[list[tf.Operation], list[tf.Operation]]:
        """Lets the values cross. Nothing is left to do before the first step or beside each."""
        for (*_, read), value in zip(self._made, self._fetch([made[:2] for made in self._made]), strict=True):
            _bind(read, value)
        self._made = []
        return [], []


def _bind(read: tf.Tensor, value: tf.Tensor) -> None:
    read.op._update_input(0, value)


def try_late_input() -> None:
    """Raises if an operation's input cannot be replaced."""
    read = tf.identity(v1.placeholder(tf.float32, []))
    _bind(read, tf.constant(2.0))
    if read.op.inputs[0].op.type != 'Const':
        raise ValueError('the input is what it was')
