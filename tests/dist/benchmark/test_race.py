"""The benchmark's own arithmetic: known times, known bytes, known operations; and processes that take turns."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from dist.benchmark import driver, groups
from dist.benchmark.groups import Group
from dist.benchmark import figures
from dist.benchmark.race import Lap, Racer, RacerFailed, Spread, race, ratios, spread, starting
from dist.benchmark.flops import Conv, count_flops, heaviest_convolutions
from inception_mg.checks import check_benchmark
from inception_mg.config import BenchmarkConfig
from inception_mg.errors import FlagError

from conftest import ROOT
SLEEP = 0.05

# A contender whose step sleeps, and leaves a line with begin and end of each turn in a file.
SLEEPER = '''
    import sys, time
    sys.path.insert(0, {root!r})
    from dist.benchmark import race
    answers = race.take_answers_apart()
    print('what libraries print is no answer')
    def run(count):
        begin = time.monotonic()
        time.sleep({sleep} * count)
        with open({turns!r}, 'a') as file:
            print({name!r}, begin, time.monotonic(), file=file)
        if count == {dies_at}:
            print('the last words', file=sys.stderr)
            sys.exit(7)
    race.serve(race.Contender(run, {{'unit': 'images', 'amount': 10}}), sys.stdin, answers)
'''


def sleeper(folder: pathlib.Path, name: str, sleep: float = SLEEP, processes: int = 1, dies_at: int = -1) -> Racer:
    code = textwrap.dedent(SLEEPER).format(root=str(ROOT), sleep=sleep, turns=str(folder / 'turns'), name=name,
                                           dies_at=dies_at)
    return Racer(name, [[sys.executable, '-c', code]] * processes, timed=processes, limit=20.0)


def run_race(folder: pathlib.Path, racers: list[Racer], rounds: int, lap_secs: float) -> tuple[list, dict]:
    failed = {}
    with starting(racers, folder, os.environ, failed.__setitem__) as ready:
        laps = race(ready, rounds, lap_secs, failed.__setitem__)
    return laps, failed


def test_a_known_sleep_gives_the_known_rate(tmp_path):
    racers = [sleeper(tmp_path, 'fast'), sleeper(tmp_path, 'slow', 4 * SLEEP)]
    laps, failed = run_race(tmp_path, racers, rounds=2, lap_secs=6 * SLEEP)
    assert not failed and len(laps) == 2
    # Steps to fill a turn: 6 of the fast one; never fewer than 2. Sleeps take longer, never shorter.
    assert {lap['fast'].amount for lap in laps} <= {50, 60} and {lap['slow'].amount for lap in laps} == {20}
    for lap in laps:
        assert 10 / SLEEP * 0.5 < lap['fast'].rate <= 10 / SLEEP
        assert 2 < lap['fast'].rate / lap['slow'].rate < 8
        assert lap['fast'].cpu < 0.1 * lap['fast'].seconds + 0.02  # Who sleeps uses no CPU.


def test_only_one_contender_runs_at_a_time(tmp_path):
    run_race(tmp_path, [sleeper(tmp_path, name) for name in 'abc'], rounds=3, lap_secs=SLEEP)
    turns = [line.split() for line in (tmp_path / 'turns').read_text().splitlines()]
    turns = sorted((float(begin), float(end), name) for name, begin, end in turns if float(end) - float(begin) > SLEEP)
    assert len(turns) == 3 * (2 + 3)  # Two to warm up, three rounds.
    assert all(before[1] <= after[0] for before, after in zip(turns, turns[1:], strict=False))
    assert [name for *_, name in turns[-9:]] == list('abcbcacab')  # Another begins each round.


def test_processes_of_one_contender_run_together_and_are_added_up(tmp_path):
    laps, _ = run_race(tmp_path, [sleeper(tmp_path, 'both', 2 * SLEEP, processes=2)], rounds=1, lap_secs=SLEEP)
    assert laps[0]['both'].amount == 2 * 2 * 10  # Processes x steps x images.
    assert 4 * SLEEP <= laps[0]['both'].seconds < 7 * SLEEP  # Not one after the other.


def test_a_contender_that_dies_is_named_with_its_last_words_and_the_others_go_on(tmp_path):
    racers = [sleeper(tmp_path, 'sound'), sleeper(tmp_path, 'dying', dies_at=4)]
    laps, failed = run_race(tmp_path, racers, rounds=2, lap_secs=4 * SLEEP)
    assert failed == {'dying': 'ended with 7: the last words'}
    assert [set(lap) for lap in laps] == [{'sound'}] * 2


def test_all_processes_end_with_the_race(tmp_path):
    racer = sleeper(tmp_path, 'one', processes=2)
    run_race(tmp_path, [racer], rounds=1, lap_secs=SLEEP)
    assert [child._process.returncode for child in racer.children] == [0, 0]


def test_the_stream_moves_the_bytes_it_says_both_ways():
    """In a process of its own, since it forks: counts the bytes that the sockets take and give."""
    code = textwrap.dedent(f'''
        import sys, socket
        sys.path.insert(0, {str(ROOT)!r})
        from dist.benchmark import tcp
        moved = [0, 0]
        class Counting(socket.socket):
            def sendall(self, data):
                moved[0] += len(data)
                return super().sendall(data)
            def recv_into(self, room):
                count = super().recv_into(room)
                moved[1] += count
                return count
        socket.socket = Counting
        run = tcp.open_stream(1_000_003)
        run(3)
        print(*moved)''')
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == ['3000009', '3000009'], done.stderr


def test_spread_and_ratios_are_those_of_the_rounds():
    assert spread([5.0]) == (5, 5, 5)
    assert spread([1.0, 2.0, 3.0, 4.0, 100.0]) == Spread(3, 2, 4)
    # The machine was half as fast in the second round: rates fall, the ratio of a round does not.
    laps = [{'a': Lap(20, 1, 1), 'b': Lap(10, 1, 1)}, {'a': Lap(20, 2, 1), 'b': Lap(10, 2, 1)}, {'a': Lap(1, 1, 1)}]
    assert ratios(laps, 'a', 'b') == [2, 2]


def test_operations_of_a_known_convolution_and_its_gradients():
    with tf.Graph().as_default() as graph:
        images, kernel = tf.zeros([2, 9, 9, 3]), tf.zeros([3, 3, 3, 5])
        net = tf.nn.conv2d(images, kernel, 2, 'VALID')  # 4 x 4 positions.
        once = 2 * (2 * 4 * 4) * (3 * 3 * 3) * 5
        assert count_flops(graph) == once
        tf.gradients(net, [images, kernel])
        assert count_flops(graph) == 3 * once
        assert heaviest_convolutions(graph, 1) == [Conv((2, 9, 9, 3), (3, 3, 3, 5), (2, 4, 4, 5), 2, 'VALID')]
        assert heaviest_convolutions(graph, 1)[0].flops == once


def test_operations_of_a_matrix_product():
    with tf.Graph().as_default() as graph:
        tf.matmul(tf.zeros([7, 3]), tf.zeros([7, 5]), transpose_a=True)
        assert count_flops(graph) == 2 * 3 * 7 * 5


def test_the_network_costs_what_its_blocks_say():
    """Forward, full size: 5.7 billion multiply-adds per image (the table of blocks in inception_v3.py)."""
    from inception_mg.model.inception_v3 import BLOCK_COST, inception_v3
    from inception_mg.model.layers import Layers
    with tf.Graph().as_default() as graph:
        inception_v3(tf.zeros([1, 299, 299, 3]), 1001, Layers(False))
        assert count_flops(graph) == pytest.approx(2e6 * sum(BLOCK_COST.values()), rel=0.001)


def test_fractions_of_the_limits():
    infos = {'one_device': {'unit': 'images', 'amount': 8, 'flops': 80}, 'matmul': {'unit': 'flops', 'amount': 1},
             'keras': {'unit': 'images', 'amount': 8}, 'tcp': {'unit': 'bytes', 'amount': 4},
             'null_step': {'unit': 'bytes', 'amount': 4}}
    laps = [{'one_device': Lap(16, 2, 4), 'matmul': Lap(200, 1, 2), 'keras': Lap(16, 4, 4)},
            {'tcp': Lap(100, 1, 1), 'null_step': Lap(80, 1, 1)}]
    one, ceiling, keras, tcp, null = figures.figures(laps, infos)
    assert one.rate.median == 8 and one.of_matmul.median == 8 * 10 / 200 and one.of_convolutions is None
    assert one.per_core.median == 4 and one.to_base.median == 1 and one.of_stream is None
    assert keras.to_base.median == 0.5 and keras.of_matmul is None and ceiling.to_base is None
    assert null.of_stream.median == 0.8 and null.to_base is None and tcp.of_stream is None


def test_comparisons_are_of_the_same_rounds():
    laps = [{'input': Lap(30, 1, 2), 'input_2016': Lap(10, 1, 1)}, {'input': Lap(30, 1, 2)}]
    pairs = [('input', 'input_2016', 2.5, False), ('input', 'input_2016', None, True), ('one_device', 'keras', 1, 0)]
    by_time, by_cpu = figures.comparisons(laps, pairs)
    assert by_time.ratio == (3, 3, 3) and by_cpu.ratio == (1.5, 1.5, 1.5)


def a_report(**parts) -> figures.Report:
    infos = {'one_device': {'unit': 'images', 'amount': 8, 'flops': 80}, 'matmul': {'unit': 'flops', 'amount': 1},
             'keras': {'unit': 'images', 'amount': 8}}
    laps = [{'one_device': Lap(16, 2, 4), 'matmul': Lap(200, 1, 2), 'keras': Lap(16, 4, 4)}] * 2
    return figures.Report(**{
        'title': 'Title', 'machine': {'cpu': 'a CPU', 'cores': 2, 'tensorflow': '2'}, 'flags': {'batch_size': 8},
        'figures': figures.figures(laps, infos), 'start_seconds': [11.5], 'start_goal': 12.0,
        'comparisons': figures.comparisons(laps, groups.pairs_for('float32')),
        'failed': {'mirrored': 'why'}, 'peers': ['keras'], 'rounds': laps} | parts)


def test_the_report_as_lines_and_json():
    text = '\n'.join(a_report().lines())
    for words in ('keras                   4.00 (4.00-4.00) images/s', '0.50 (0.50-0.50)', '0.40 matmul',
                  '11.5 (11.5-11.5)    <12 met', 'mirrored failed: why', '2.00 (2.00-2.00)    1.3 met'):
        assert words in text, text
    assert '<12 missed' in '\n'.join(a_report(start_seconds=[12.5]).lines())
    read = json.loads(a_report().as_json())
    assert read['comparisons'][0]['ratio']['median'] == 2 and read['figures'][2]['to_base']['low'] == 0.5
    assert read['rounds'][1]['keras'] == {'amount': 16, 'seconds': 4, 'cpu': 4}


def test_the_report_as_a_picture(tmp_path):
    pytest.importorskip('matplotlib')
    figures.draw(a_report(), str(tmp_path / 'figures.png'))
    assert (tmp_path / 'figures.png').read_bytes().startswith(b'\x89PNG')


def test_flags_choose_contenders():
    def names(only='', peer='none', dtype='bfloat16'):
        return groups.chosen_names(only, peer, dtype)
    peers = {name for group in groups.PEERS.values() for name in group}
    everything = {*groups.NAMES, groups.START}
    assert set(names()) == everything - peers
    assert set(names(peer='all')) == everything
    assert set(names(peer='all', dtype='float32')) == everything - {'keras_float32'}
    assert set(names(peer='mirrored,multiworker')) == everything - peers | {'mirrored', 'multiworker'}
    assert names(only='keras', peer='all') == ['keras']
    for wrong in ({'only': 'one_devise'}, {'peer': 'horovod'}):
        with pytest.raises(FlagError, match='there is no'):
            names(**wrong)


def test_groups_of_chosen_contenders():
    def names_in(*names):
        return [group.names for group in groups.groups_of(names)]
    assert names_in('one_device', 'matmul') == [()]  # The baselines, alone.
    assert names_in('one_device', 'tcp') == [(), ('tcp',)]
    assert names_in('one_device', 'two_towers', 'matmul') == [('two_towers',)]
    assert names_in('input', 'start') == [('input',)]
    assert names_in('start') == []


def test_the_driver_runs_baselines_through_all_groups_and_names_who_fails(tmp_path, monkeypatch):
    """one_device starts once, runs in both groups, and goes on when another one dies."""
    monkeypatch.setattr(driver, 'make_racer',
                        lambda name, settings: sleeper(tmp_path, name, dies_at=2 if name == 'mirrored' else -1))
    said = []
    race = driver.Driver([], 1, SLEEP, tmp_path, os.environ, said.append)
    rounds = [Group('towers', ('two_towers', 'mirrored')), Group('split', ('split_stages',)),
              Group('wire', ('tcp',), with_baselines=False)]
    found = race.run(rounds, ['one_device', 'two_towers', 'mirrored', 'split_stages', 'tcp'])
    assert [set(lap) for lap in found.laps] == [{'one_device', 'two_towers'}, {'one_device', 'split_stages'}, {'tcp'}]
    assert found.failed == {'mirrored': 'ended with 7: the last words'}
    assert '  mirrored failed, the others go on: ended with 7: the last words' in said
    assert said[0].startswith('[1/3] towers: two_towers, mirrored; ')
    assert len({path.parent for path in tmp_path.glob('*/one_device_0.log')}) == 1


def test_the_time_to_go_learns_from_the_time_that_went():
    now = [100.0]
    progress = driver.Progress(600.0, clock=lambda: now[0])
    assert progress.to_go() == 'about 10 min to go'
    now[0] += 120
    progress.advance(60.0)
    assert progress.to_go() == 'about 18 min to go'
    progress.advance(540.0)
    assert progress.to_go() == 'less than a minute to go'


LAUNCHER = '''
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(open({ended!r}, 'w').close()))
    time.sleep({sleep})
    print({line!r}, flush=True)
    time.sleep({lingers})
'''


def start_of(folder: pathlib.Path, monkeypatch, line: str, lingers: float) -> float:
    """time_start of a launcher that says `line` and would then go on for some seconds."""
    code = LAUNCHER.format(ended=str(folder / 'ended'), sleep=4 * SLEEP, line=line, lingers=lingers)
    (folder / 'launch_local.py').write_text(textwrap.dedent(code))
    monkeypatch.setattr(driver, 'SCRIPTS', folder)
    return driver.time_start(folder, [], os.environ)


def test_the_start_lasts_until_the_first_step_of_the_chief_and_all_is_ended(tmp_path, monkeypatch):
    assert 4 * SLEEP <= start_of(tmp_path, monkeypatch, 'worker 0 | step      1/1000', lingers=60) < 30
    assert (tmp_path / 'ended').exists()


def test_a_start_without_a_step_says_what_came_last(tmp_path, monkeypatch):
    with pytest.raises(RacerFailed, match=r'no first step within .* s: worker 1 \| step'):
        start_of(tmp_path, monkeypatch, 'worker 1 | step      1/1000', lingers=0)


def test_clusters_get_their_processes():
    racer = groups.make_racer('async_workers', ['--batch_size=4'])
    assert [command[-2:] for command in racer.commands] == [
        ['--job_name=ps', '--task_id=0'], ['--job_name=worker', '--task_id=0'], ['--job_name=worker', '--task_id=1']]
    assert racer.timed == 2 and all('--batch_size=4' in command for command in racer.commands)
    client = groups.make_racer('in_graph', [])
    assert client.timed == 1 and client.commands[-1][-2:] == ['--job_name=worker', '--task_id=0']


@pytest.mark.parametrize('wrong', [{'rounds': 0}, {'lap_seconds': 0.0}, {'json': '/no/such/folder/x'}])
def test_wrong_flags_are_named(wrong):
    with pytest.raises(FlagError, match=next(iter(wrong))):
        check_benchmark(BenchmarkConfig(**wrong))
