"""Both forms of every operation that has two, for tests that must hold with either."""

import pytest

from inception_mg.fast.choice import fast_operations
from inception_mg.fast.operations import PLAIN

FAST, MISSING = fast_operations()
FORMS = {'plain': PLAIN, 'fast': FAST}
in_both_forms = pytest.mark.parametrize('operations', FORMS.values(), ids=FORMS)
