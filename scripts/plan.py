"""Says how many workers, how many ps and which network: from a measured or a built-in machine, by a model of a step.

    python scripts/plan.py --calibrate=here.json                     # measures this machine, in two minutes
    python scripts/plan.py --machine=here.json --workers=1,2,4,8,16,32 --network=10,25,100 --gpus=8 --batch_size=64
    python scripts/plan.py --machine=here.json --workers=16 --ps=4 --async --slow=1:3
    python scripts/plan.py --machine=piz_daint --target=5000         # the fewest machines and ps, per network
    python scripts/plan.py --machine=dgx1_p100 --gpus=8 --network=10,25 --html=plan.html
    python scripts/plan.py --published                               # published tables, predicted beside measured
    python scripts/plan.py --machine=here.json --check=run2          # what a finished run logged, beside the model

docs/planner.md says what is measured, given and assumed. Exit codes: 0, 3 when --published breaks its gate, 2 for wrong
flags, 1 otherwise.
"""

import dataclasses
import json
import os

import common
from dist.planner import figure, machine, page, published
from dist.planner.plan import Planner, Question, Row, table
from inception_mg import checks, config
from inception_mg.checks import gbits_of, numbers_of, slow_of
from inception_mg.errors import FlagError, UserError
from inception_mg.files import write_text

EXIT_GATE = 3
MB = 1e6


def main() -> int:
    plan = common.from_flags(config.PlanConfig)
    if common.flags.FLAGS['async'].value:
        if 'sync' in common.given_flags() and plan.sync:
            raise FlagError('--sync and --async exclude each other')
        plan = dataclasses.replace(plan, sync=False)
    checks.check_plan(plan)
    modes = [name for name in ('published', 'calibrate', 'check', 'laboratory') if getattr(plan, name)]
    if len(modes) > 1:
        raise FlagError(f'--{modes[0]} and --{modes[1]} exclude each other')
    return {'published': show_published, 'calibrate': calibrate, 'check': check, 'laboratory': laboratory,
            '': show_plan}[modes[0] if modes else ''](plan)


def show_published(plan: config.PlanConfig) -> int:
    """The tables of others, recomputed; 3 if the gate fails."""
    found = published.compare()
    print('\n'.join(published.lines(found)))
    if plan.json:
        write_text(plan.json, json.dumps([published.as_values(one) for one in found], indent=1) + '\n')
    failures = published.failures(found)
    for failure in failures:
        print(f'gate failed: {failure}')
    return EXIT_GATE if failures else 0


def calibrate(plan: config.PlanConfig) -> int:
    """Measures this machine."""
    data, model = common.data_and_model()
    data = dataclasses.replace(data, batch_size=plan.batch_size or config.DataConfig().batch_size)
    checks.check_model(model)
    checks.check_data(data, model.model)
    with common.quiet_import():
        from dist.planner.calibrate import measure
    found = measure(data, model)
    machine.save(found, plan.calibrate)
    print(f'wrote {plan.calibrate}; next: python scripts/plan.py --machine={plan.calibrate} --network=1,10,25')
    return 0


def check(plan: config.PlanConfig) -> int:
    """A finished run beside the model."""
    from dist.planner.check import compare_run
    print('\n'.join(compare_run(plan.check, the_machine(plan), gbits_of(plan.network)[0])))
    return 0


def laboratory(plan: config.PlanConfig) -> int:
    """Set-ups on machines of the laboratory, beside the model."""
    from dist.planner import traffic
    if os.path.exists(plan.laboratory):
        print(f'{plan.laboratory} is there: predicted anew from what was measured then (remove it to measure)')
        found = traffic.read(plan.laboratory)
    else:
        found = traffic.run_all(plan.laboratory)
    print('\n'.join(found.lines()))
    if plan.png:
        traffic.draw(found, plan.png)
    return 0


def show_plan(plan: config.PlanConfig) -> int:
    """The table, or the target; and the files."""
    found = the_machine(plan)
    if plan.png:
        figure.require()
    networks = gbits_of(plan.network)
    planner = Planner(found, Question(
        plan.sync, plan.gpus, plan.batch_size, plan.speed, 0.5 if plan.wire_dtype == 'bfloat16' else 1.0,
        slow_of(plan.slow), int(plan.partition_mb * MB)))
    counts = () if plan.ps == 'auto' else tuple(numbers_of('ps', plan.ps))
    workers, backups = numbers_of('workers', plan.workers), numbers_of('backups', plan.backups, 0)
    print('\n'.join(planner.head()))
    if plan.target:
        rows = targets(planner, plan.target, networks)
    else:
        rows = planner.rows(workers, counts, networks, backups)
        print('\n'.join(['', *table(rows), '', *planner.advice(rows, counts)]))
    if plan.json:
        write_text(plan.json, json.dumps({'machine': found.name, 'question': dataclasses.asdict(planner.question),
                                          'rows': [dataclasses.asdict(row) for row in rows]}, indent=1) + '\n')
    if plan.png:
        figure.draw(planner, workers, counts, networks, plan.png)
    if plan.html:
        print('computing the page, half a minute ...')
        write_text(plan.html, page.html(planner, networks))
        print(f'wrote {plan.html}')
    return 0


def targets(planner: Planner, speed: float, networks: list[float]) -> list[Row]:
    """Says for each network what reaches so many images/s."""
    rows = []
    for gbits in networks:
        row, reached = planner.target(speed, gbits)
        where = f'{gbits:g} Gbit/s' if gbits else 'its own network'
        said = (f'{row.workers} worker{"s" * (row.workers > 1)} and {row.ps} ps make {row.images_per_sec:.0f} images/s '
                f'({row.low:.0f} to {row.high:.0f})')
        print(f'{where}: {said}' if reached else
              f'{where}: {speed:g} images/s are not reached; the best are {said}, bound by {row.bound}')
        rows.append(row)
    return rows


def the_machine(plan: config.PlanConfig) -> machine.Machine:
    """That of --machine; FlagError if a flag names another network than it was measured with."""
    found, given = machine.find(plan.machine), common.given_flags() & {'model', 'width', 'image_size', 'compute_dtype'}
    data, model = common.data_and_model()
    asked = {'model': model.model, 'width': model.width, 'image_size': data.image_size,
             'compute_dtype': model.compute_dtype}
    for name in sorted(given):
        if asked[name] != found.settings.get(name):
            raise UserError(f'--machine={plan.machine} was measured with --{name}={found.settings.get(name)}, not '
                            f'{asked[name]}: calibrate with that, or leave --{name} out')
    return found


if __name__ == '__main__':
    common.define_flags(config.PlanConfig)
    common.flags.DEFINE_boolean('async', False, 'Asynchronous: each worker updates when it is ready.')
    common.define_flags(config.ModelConfig, only=('model', 'width', 'compute_dtype'))
    common.define_flags(config.DataConfig, only=('image_size',))
    common.run(main)
