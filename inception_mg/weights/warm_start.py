"""What a new training takes from trained weights, and what it begins anew."""

from collections.abc import Sequence
from typing import NamedTuple

from inception_mg.config import SOURCES
from inception_mg.slices import Whole
from inception_mg.weights.checkpoints import HEADS
from inception_mg.weights.names import AUX_HEAD
from inception_mg.weights.sources import Weights, check_weights, some

_AUX_CONV = 'aux_logits/Conv/'  # Its kernel is as large as the auxiliary head's grid, so it depends on the image size.


class WarmStart(NamedTuple):
    """taken: the variables that get the weights of the file. anew: names of those that keep their initial values."""

    weights: Weights
    taken: list[Whole]
    anew: list[str]

    def lines(self) -> list[str]:
        """What to tell the user: where the weights are from, how many were taken, and the names left out."""
        weights, total = self.weights, len(self.taken) + len(self.anew)
        kind = 'moving averages' if weights.averages else 'weights'
        return [f'weights    {len(self.taken)} of {total} variables from the {kind} of {weights.path} '
                f'({SOURCES[weights.source]})',
                *(f'           {note}' for note in weights.notes),
                *([f'           begin anew: {some(self.anew)}'] if self.anew else [])]


def plan_warm_start(weights: Weights, variables: Sequence[Whole], fine_tune: bool) -> WarmStart:
    """Decides what each of the model's variables (with the batch-norm statistics; see slices.wholes) begins with.

    All are taken, except: with fine_tune the two heads, whose shape is the number of classes, and the auxiliary head's
    second convolution where its kernel follows from another image size; always an auxiliary head that the file does
    not have. Raises UserError naming a variable that is missing or shaped differently.
    """
    shapes = {variable.name: variable.shape for variable in variables}
    left_out = (*HEADS,) if fine_tune else ()
    if not weights.has_aux_head:
        left_out = (*left_out, AUX_HEAD)
    kernel = f'{_AUX_CONV}weights'
    if fine_tune and list(weights.shapes.get(kernel, ())) != shapes.get(kernel):
        left_out = (*left_out, _AUX_CONV)
    wanted = {name: shape for name, shape in shapes.items() if not name.startswith(left_out)}
    remedy = '--width must be that of the checkpoint'
    check_weights(weights, wanted, remedy if fine_tune else f'with other classes use --fine_tune; {remedy}')
    return WarmStart(weights, [variable for variable in variables if variable.name in wanted],
                     [name for name in shapes if name not in wanted])
