"""The plan as one page with sliders. The program computes a grid of predictions and lays it in the page, which only
looks up and divides: there is one model, and not a second one in another language."""

import html as escaping
import json
import pathlib
from collections.abc import Sequence

from dist.planner import model
from dist.planner.plan import Planner

WORKERS, PS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32)
NETWORKS = (1.0, 10.0, 25.0, 100.0)
BATCHES, SPEED_STEPS = (16, 32, 64, 128), 4  # Both in steps of 2, so that most ratios come up several times.
BOUNDS = ('compute', 'the wires', 'nothing alone')
TEMPLATE = pathlib.Path(__file__).with_name('page.html')


def grid(planner: Planner, networks: Sequence[float]) -> dict:
    """All that the page shows. cells: '[sync, seconds of computing, network, ps, workers]', by their places in the
    lists, -> [seconds of a step, staleness, what binds]."""
    own = planner.batch / planner.machine.seconds(planner.batch) if not planner.question.speed else \
        planner.question.speed
    speeds = [own * 2.0 ** k for k in range(-1, SPEED_STEPS - 1)]
    networks = [gbits for gbits in networks if gbits] or list(NETWORKS)
    computing = sorted({round(batch / speed, 9) for batch in BATCHES for speed in speeds})
    cells = {}
    for sync in (False, True):
        for place, seconds in enumerate(computing):
            asked = planner.at(seconds, sync)
            for net, gbits in enumerate(networks):
                for column, ps in enumerate(PS):
                    for row, workers in enumerate(WORKERS):
                        job = asked.job(workers, ps, gbits)
                        pace = model.predict(job, sync)
                        gains = asked.gains(job, pace, all_of_them=False)
                        bound = max(gains, key=gains.get)
                        bound = bound if gains[bound] > 0.01 else BOUNDS[-1]
                        cells[f'{int(sync)},{place},{net},{column},{row}'] = [
                            round(pace.step, 5), round(pace.staleness, 1), BOUNDS.index(bound)]
    measured = planner.machine.measured
    return {'machine': planner.machine.name, 'source': planner.machine.source, 'gpus': planner.question.gpus,
            'workers': WORKERS, 'ps': PS, 'networks': networks, 'speeds': [round(speed, 3) for speed in speeds],
            'batches': BATCHES, 'computing': computing, 'bounds': BOUNDS, 'cells': cells,
            'computing_of': [[computing.index(round(batch / speed, 9)) for speed in speeds] for batch in BATCHES],
            'alone': [planner.at(seconds, True).seconds() for seconds in computing],
            'fullest': [planner.job(1, ps, networks[0]).fullest for ps in PS],
            'first_batch': min(range(len(BATCHES)), key=lambda k: abs(BATCHES[k] - planner.batch)),
            'measured': {str(count): speed for count, speed in measured.items()} if planner.question.gpus == 1 else {},
            'measured_batch': planner.machine.default_batch}


def html(planner: Planner, networks: Sequence[float]) -> str:
    """The page, complete in one text."""
    values = json.dumps(grid(planner, networks)).replace('</', '<\\/')
    title = escaping.escape(f'How many workers, how many ps: {planner.machine.name}')
    return TEMPLATE.read_text(encoding='utf-8').replace('@TITLE@', title).replace('@GRID@', values).replace(
        '@HEAD@', '\n'.join(f'<p>{escaping.escape(line)}</p>' for line in planner.head()))
