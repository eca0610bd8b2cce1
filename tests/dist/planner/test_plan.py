"""The planner's commands: rows, targets, files, wrong input, and the page in a browser."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

from dist.planner import check, machine, page, plan
from dist.planner.networks import NETWORKS, network, of_classes, trained
from dist.planner.plan import Planner, Question
from inception_mg import checks, config
from inception_mg.errors import FlagError, UserError
from inception_mg.run_dir.model_card import ModelCard, write_card

DAINT = machine.find('piz_daint')
BROWSER = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)


def run(*flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(ROOT / 'scripts' / 'plan.py'), *flags], capture_output=True, text=True,
                          timeout=60)


def test_more_workers_help_until_a_wire_is_full():
    planner = Planner(DAINT, Question())
    few, many = (planner.row(16, ps, 0.0) for ps in (1, 12))
    assert few.bound == 'wire of a ps' and few.gains['number of ps'] > 0.5 and few.efficiency < 0.4 < 0.9 < many.efficiency
    assert many.bound == 'compute' and few.asynchronous > many.asynchronous
    assert few.low < few.images_per_sec < few.high and few.fullest == 108583880
    assert few.ps_memory == 108583880 * (4 + 16)


def test_the_fewest_ps_that_are_enough():
    planner = Planner(DAINT, Question())
    best = planner.best_ps(32, 0.0)
    speeds = {ps: planner.pace(32, ps, 0.0).images_per_sec for ps in plan.CANDIDATES}
    assert speeds[best] >= plan.ENOUGH * max(speeds.values()) > max(speeds[ps] for ps in speeds if ps < best)


@pytest.mark.parametrize('goal, gbits', [(3000, 10.0), (1000, 10.0), (300, 1.0)])
def test_a_target_is_reached_by_the_fewest(goal, gbits):
    planner = Planner(DAINT, Question())
    row, reached = planner.target(goal, gbits)
    assert reached and row.images_per_sec >= goal
    fewer = [planner.pace(row.workers - 1, ps, gbits).images_per_sec for ps in plan.CANDIDATES
             if ps <= 2 * (row.workers - 1)]
    assert max(fewer, default=0) < goal
    assert all(planner.pace(row.workers, ps, gbits).images_per_sec < goal for ps in plan.CANDIDATES if ps < row.ps)


def test_a_target_beyond_reach_names_what_stops_it():
    row, reached = Planner(DAINT, Question()).target(1e6, 0.1)
    assert not reached and 'wire' in row.bound


def test_half_the_bytes_slices_and_speed():
    plain, half, cut, fast = (Planner(DAINT, question) for question in (
        Question(), Question(bytes_factor=0.5), Question(partition=500000), Question(speed=1000.0)))
    assert half.pace(64, 4, 0).images_per_sec > 1.5 * plain.pace(64, 4, 0).images_per_sec
    assert sum(one.bytes for one in plan.pieces(network('inception_v3'), 500000)) == pytest.approx(108583880, abs=1e4)
    assert max(one.bytes for one in plan.pieces(network('inception_v3'), 500000)) <= 500000
    assert cut.job(64, 64, 0).fullest < 1.1 * 108583880 / 64 < plain.job(64, 64, 0).fullest / 5
    assert fast.seconds() == pytest.approx(0.064)


def test_several_gpus_and_input_bound_a_machine():
    one, eight = (Planner(machine.find('dgx1_p100'), Question(gpus=gpus)).seconds() for gpus in (1, 8))
    assert 1.0 < eight / one < 1.2
    slow = dataclasses.replace(DAINT, input_rate=10.0)
    assert Planner(slow, Question(batch_size=64)).seconds() == 6.4


def test_a_machine_comes_back_from_its_file(tmp_path):
    path = str(tmp_path / 'here.json')
    machine.save(DAINT, path)
    assert machine.load(path) == DAINT


@pytest.mark.parametrize('content, said', [
    (None, 'No such file'), ('{}', 'is no file of plan.py'), ('[1', 'is no file of plan.py'), ('\xff', 'is no file'),
    ('{"planner": 99}', 'another version'), ('{"planner": 1}', 'is damaged'),
    (lambda values: values | {'ps_rate': 0}, 'is damaged'), (lambda values: values | {'speeds': {}}, 'is damaged'),
    (lambda values: values | {'variables': [['x', 1]]}, 'is damaged'), (lambda values: values | {'new': 1}, 'is damaged'),
    (lambda values: values | {'ps_rate': 'fast'}, 'is damaged')])
def test_a_file_that_is_none_is_one_line(tmp_path, content, said):
    path = tmp_path / 'wrong.json'
    if callable(content):
        machine.save(DAINT, str(path))
        content = json.dumps(content(json.loads(path.read_text())))
    if content is not None:
        path.write_bytes(content.encode('latin-1'))
    with pytest.raises(UserError, match=said) as error:
        machine.load(str(path))
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('changes, said', [
    ({'ps': '0'}, '--ps=0'), ({'ps': 'many'}, '--ps=many'), ({'workers': '1,,2'}, '--workers=1,,2'),
    ({'workers': '300'}, 'at most 256'), ({'backups': '32'}, '--backups=32'), ({'backups': '1', 'sync': False}, 'need --sync'),
    ({'network': '10;25'}, '--network=10;25'), ({'network': '0'}, '--network=0'), ({'slow': '3'}, '--slow=3'),
    ({'slow': '40:2'}, '--slow=40:2'), ({'slow': '1:0.5'}, '--slow=1:0.5'), ({'gpus': 0}, '--gpus=0'),
    ({'speed': -1.0}, '--speed=-1.0'), ({'json': '/no/such/folder/a.json'}, '--json='), ({'network': 'nan'}, '--network')])
def test_wrong_flags_are_named(changes, said):
    with pytest.raises(FlagError, match=re.escape(said)):
        checks.check_plan(dataclasses.replace(config.PlanConfig(), **changes))


def test_the_commands(tmp_path):
    files = {name: tmp_path / f'plan.{name}' for name in ('json', 'png')}
    done = run('--machine=piz_daint', '--workers=2,8', '--network=1,10', '--slow=1:3', '--backups=0,1',
               *(f'--{name}={path}' for name, path in files.items()))
    if 'matplotlib' in done.stderr:
        pytest.skip('matplotlib is not installed')
    assert done.returncode == 0, done.stderr
    rows = json.loads(files['json'].read_text())['rows']
    assert [(row['gbits'], row['workers'], row['backups']) for row in rows] == [
        (gbits, workers, spare) for gbits in (1, 10) for workers in (2, 8) for spare in (0, 1)]
    assert f'{rows[-1]["images_per_sec"]:.0f}' in done.stdout and files['png'].read_bytes()[:4] == b'\x89PNG'


def test_published_exits_with_0_and_errors_with_one_line():
    assert run('--published').returncode == 0
    for flags, code in ((('--machine=piz_daint', '--model=resnet_v1_50'), 1), (('--machine=nowhere',), 1), ((), 2),
                        (('--machine=piz_daint', '--ps=0'), 2), (('--machine=piz_daint', '--sync', '--async'), 2)):
        done = run(*flags)
        assert done.returncode == code and len(done.stderr.splitlines()) == 1 and not done.stdout, flags


LOGS = {'worker_0.log': '''chief serves on 10.0.0.2:2222
cluster    chief of 2 ps and 3 workers, synchronous, 2 of 3 gradients per update; reads part 1 of 3 of the images
batch      64 images per update; here 32 = 2 towers x 16; 3.0 steps per epoch
wire       a step of each worker pulls 97.4 MB of weights and pushes as much of gradients; with 10 Gbit/s
chief made 50 steps in 20.0 s, 25% of it waiting for updates: 243.5 MB/s each way
''', 'worker_1.log': '''worker 1 made 20 steps in 9.0 s, 1% of it waiting for updates: 194.8 MB/s each way
worker 1 made 40 steps in 20.0 s, 35% of it waiting for updates: 194.8 MB/s each way
''', 'worker_7.log': 'worker 7 made 90 steps in 20.0 s, 1% of it waiting for updates: 194.8 MB/s each way\n'}
CARD = ModelCard(1.0, 299, tuple('abcdefghi'), 'float32', 'records')


def test_a_finished_run_is_read_and_compared(tmp_path):
    """The chief is worker 0; what an earlier job left of a worker that this one has not does not count."""
    with pytest.raises(UserError, match='there is no .*logs'):
        check.read_run(str(tmp_path))
    (tmp_path / 'logs').mkdir()
    (tmp_path / 'logs' / 'worker_0.log').write_text('nothing\n')
    with pytest.raises(UserError, match='hold no run'):
        check.read_run(str(tmp_path))
    for name, text in LOGS.items():
        (tmp_path / 'logs' / name).write_text(text)
    found = check.read_run(str(tmp_path))
    assert (found.ps, found.workers, found.sync, found.needed, found.images, found.towers) == (2, 3, True, 2, 32, 2)
    assert found.steps == {0: (50, 20.0, 0.25), 1: (40, 20.0, 0.35)} and found.wire_dtype == 'float32'
    assert found.images_per_sec == 50 / 20 * 2 * 32 and not found.one_machine
    with pytest.raises(UserError, match=r'pulled 97.4 MB, .* of 108.6 MB'):  # Without its card: of 1001 outputs.
        check.compare_run(str(tmp_path), DAINT, 10.0)


def test_a_run_of_few_classes_is_compared_with_its_own_bytes(tmp_path):
    (tmp_path / 'logs').mkdir()
    for name, text in LOGS.items():
        (tmp_path / 'logs' / name).write_text(text)
    write_card(str(tmp_path), CARD)
    lines = check.compare_run(str(tmp_path), DAINT, 10.0)
    assert '160' in lines[2] and lines[5].split() == ['waiting', 'for', 'updates', '30%'] and 'bound by' in lines[6]
    assert len(lines) == 7 and '--network=10' in check.compare_run(
        str(tmp_path), dataclasses.replace(DAINT, own_gbits=0.0), 0.0)[-1]
    write_card(str(tmp_path), dataclasses.replace(CARD, image_size=75))
    with pytest.raises(UserError, match='--image_size=75, --machine was measured with 299'):
        check.compare_run(str(tmp_path), DAINT, 10.0)
    write_card(str(tmp_path), CARD)
    log = tmp_path / 'logs' / 'worker_0.log'
    log.write_text(log.read_text().replace('97.4 MB of weights and pushes as much of gradients',
                                           '48.7 MB of weights and pushes as much of gradients, in bfloat16'))
    assert check.read_run(str(tmp_path)).wire_dtype == 'bfloat16'
    assert f'{48.7 / (40 / 90):.4g}' in check.compare_run(str(tmp_path), DAINT, 10.0)[4]


@pytest.mark.parametrize('name', sorted(NETWORKS))
def test_only_the_last_layers_depend_on_the_number_of_classes(name):
    """The kernel and the biases of the logits, and of the auxiliary ones where the network has them."""
    pairs = list(zip(network(name), of_classes(network(name), 10), strict=True))
    changed = [(one, other) for one, other in pairs if one != other]
    assert len(changed) == (4 if name == 'inception_v3' else 2) and changed[-1][0] is trained(network(name))[-1]
    assert all(other.bytes * 1001 == one.bytes * 10 for one, other in changed)


@pytest.fixture(scope='module')
def small_page(tmp_path_factory):
    """A page with a smaller grid, and what it holds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, values in (('WORKERS', (1, 2, 4, 8)), ('PS', (1, 2)), ('BATCHES', (32, 64)), ('SPEED_STEPS', 3)):
            patch.setattr(page, name, values)
        planner = Planner(DAINT, Question())
        path = tmp_path_factory.mktemp('page') / 'plan.html'
        path.write_text(page.html(planner, [1.0, 10.0]))
        yield path, planner


def test_the_page_is_complete_and_holds_the_programs_figures(small_page):
    path, planner = small_page
    text = path.read_text()
    assert not re.search(r'(src|href)=|https?://(?!www.w3)', text.split('<footer>')[0]) and '@' + 'GRID' not in text
    grid = json.loads(re.search(r'id="grid">(.*?)</script>', text, re.DOTALL)[1])
    for sync in (False, True):
        asked = Planner(DAINT, Question(sync, speed=grid['speeds'][2], batch_size=64))
        step, _, bound = grid['cells'][f'{int(sync)},{grid["computing_of"][1][2]},1,1,3']
        assert step == pytest.approx(asked.pace(8, 2, 10.0).step, abs=1e-5)
    assert grid['fullest'] == [108583880, asked.job(1, 2, 1.0).fullest]


MOVES = '''<script>
const places = {workers: [0, 3], ps: [0, 1], network: [0, 1], speed: [0, 2], batch: [0, 1]}, seen = [];
for (const manner of ['sync', 'async']) {
  document.getElementById(manner).click();
  for (const [name, ends] of Object.entries(places)) for (const place of ends) {
    const slider = document.getElementById(name);
    slider.value = place;
    slider.dispatchEvent(new Event('input'));
    const shown = {manner};
    for (const other of Object.keys(places)) shown[other] = document.getElementById(other + '_v').textContent;
    for (const what of ['images', 'step', 'bound', 'fullest']) shown[what] = document.getElementById(what).textContent;
    shown.curve = document.querySelectorAll('svg .curve').length;
    seen.push(shown);
  }
}
document.title = 'SEEN' + JSON.stringify(seen);
</script></body>'''


@pytest.mark.skipif(not BROWSER, reason='needs a Chromium')
def test_sliders_show_what_the_program_says(small_page, tmp_path):
    """Moves each slider in a headless browser, reads the shown figures and predicts them anew."""
    path, _ = small_page
    moved = tmp_path / 'moved.html'
    moved.write_text(path.read_text().replace('</body>', MOVES))
    done = subprocess.run([BROWSER, '--headless', '--no-sandbox', '--disable-gpu', f'--user-data-dir={tmp_path / "profile"}',
                           '--dump-dom', moved.as_uri()], capture_output=True, text=True, timeout=90)
    found = re.search(r'<title>SEEN(.*?)</title>', done.stdout)
    if not found and 'dump-dom' not in done.stderr and not done.stdout:
        pytest.skip(f'this Chromium does not run here: {done.stderr.strip().splitlines()[-1:]}')
    shown = json.loads(found[1])
    assert len(shown) == 20 and len({(one['images'], one['manner']) for one in shown}) > 10
    for one in shown:
        asked = Planner(DAINT, Question(one['manner'] == 'sync', batch_size=int(one['batch']),
                                        speed=float(one['speed'])))
        row = asked.pace(int(one['workers']), int(one['ps']), float(one['network']))
        assert float(one['images']) == pytest.approx(row.images_per_sec, rel=0.006), one
        assert float(one['step'].split()[0]) == pytest.approx(row.step, rel=0.006, abs=0.001)
        assert one['fullest'] == f'{asked.job(1, int(one["ps"]), 1.0).fullest / 1e6:.1f} MB' and one['curve'] == 1
        assert one['bound'] in page.BOUNDS


def test_all_trained_variables_lie_on_a_ps():
    planner = Planner(DAINT, Question())
    job = planner.job(4, 3, 0.0)
    assert len(job.place) == len(trained(DAINT.variables)) and set(job.place) == {0, 1, 2}
