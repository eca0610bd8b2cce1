"""The report's pictures and page, from figures made up here: boxes hold boxes, arrows are as thick as bytes."""

import dataclasses
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from conftest import ROOT

from inception_mg.report.layout import THICKEST, THINNEST, lay_out, machine_bottom
from inception_mg.report.page import html_page, text_overview, text_report
from inception_mg.report.picture import COLOURS, DARK, LIGHT, draw
from inception_mg.report.summary import DeviceRow, ExpectedRow, PairRow, WayReport, gbits_of
from inception_mg.training.step_records import Transfer
from inception_mg.training.timeline import size_text

PS = '/job:ps/task:0/device:CPU:0'
HOSTS = [f'/job:worker/task:{task}/device:CPU:0' for task in range(2)]
DEVICES = [f'/job:worker/task:{task}/device:CPU:1' for task in range(2)]
WEIGHTS = 40_000_000


def device(name: str, **held) -> DeviceRow:
    towers = [f'tower {DEVICES.index(name)}'] if name in DEVICES else []
    return DeviceRow(name, 10, towers, sum(held.values()) // 4, held, 0, 0)


def cluster() -> WayReport:
    """A ps and two workers with a device each; the last tower's statistics go to the ps straight."""
    pairs = [PairRow(*ends, kind, 3, WEIGHTS, WEIGHTS, 1.5) for host, tower in zip(HOSTS, DEVICES, strict=True)
             for ends, kind in (((PS, host), 'weights'), ((host, PS), 'gradients'), ((host, tower), 'weights'),
                                ((tower, host), 'gradients'))]
    pairs.append(PairRow(DEVICES[1], PS, 'statistics', 2, WEIGHTS // 4, WEIGHTS // 4, 0.5))
    pairs.append(PairRow(PS, DEVICES[1], 'other', 1, 8, 8, 0.0))
    return WayReport(
        'in_graph', '4  In-graph: one <client>', 'One graph.', ['/job:worker/task:0'], 2, 1.25,
        [device(PS, weights=WEIGHTS, slots=2 * WEIGHTS), *map(device, HOSTS), *map(device, DEVICES)], pairs,
        [ExpectedRow('weights to worker 0', WEIGHTS, WEIGHTS, WEIGHTS)],
        {'ps 0': {'in': 90_000_000, 'out': 80_000_000}, 'worker 0': {'in': WEIGHTS, 'out': WEIGHTS}},
        {PS: 3 * WEIGHTS}, [{'name': 'input_0', 'device': HOSTS[0], 'why': 'its own place'}],
        [{'operation': 'strayed', 'asked': DEVICES[0], 'ran': HOSTS[0]}], [],
        {'seconds': 1.3, 'compute': 0.5, 'wire': 0.3, 'input': 0.1, 'waiting': 0.1}, 'compute',
        'a recorded step took 1.3 s: bound by compute', 'at 10 Gbit/s ps 0 is the busiest', True)


def split() -> WayReport:
    """One machine, two devices with activations between them."""
    way, names = cluster(), [f'/device:CPU:{number}' for number in range(3)]
    pairs = [PairRow(names[1], names[2], 'activations', 5, WEIGHTS, WEIGHTS, 0.0),
             PairRow(names[2], names[1], 'activations', 5, WEIGHTS, WEIGHTS, 0.0)]
    rows = [device(names[0], weights=WEIGHTS), *(dataclasses.replace(device(name), towers=['part of tower 0'])
                                                 for name in names[1:])]
    return dataclasses.replace(way, name='split_model', devices=rows, pairs=pairs, wire={}, clients=[''], moved=[],
                               balance={names[0]: WEIGHTS})


def many(workers: int, num_ps: int) -> WayReport:
    """Workers that all get W from every ps in equal parts, the last ps's a little larger; the last sends statistics."""
    def name(job, task):
        return f'/job:{job}/task:{task}/device:CPU:0'
    servers, hosts = ([name(job, k) for k in range(count)] for job, count in (('ps', num_ps), ('worker', workers)))
    pairs = [PairRow(*ends, kind, 3, size, size, 0.0) for k, ps in enumerate(servers) for host in hosts
             for size in [WEIGHTS + 4 * k] for ends, kind in (((ps, host), 'weights'), ((host, ps), 'gradients'))]
    pairs += [PairRow(name('worker', workers - 1), servers[0], 'statistics', 2, 400, 400, 0.0)]
    pairs += [PairRow(hosts[0], hosts[-1], 'activations', 2, 800, 800, 0.0)] * (workers > 1)
    rows = [*(device(ps, weights=WEIGHTS + 4 * k) for k, ps in enumerate(servers)), *map(device, hosts)]
    return dataclasses.replace(cluster(), devices=rows, pairs=pairs)


def elements(svg: str, tag: str, name: str) -> list[ElementTree.Element]:
    """The elements of a tag that have the class `name`."""
    return [found for found in ElementTree.fromstring(svg).iter(f'{{http://www.w3.org/2000/svg}}{tag}')
            if name in found.get('class', '').split()]


def edges(box: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right, bottom."""
    x, y, width, height = (float(box.get(key)) for key in ('x', 'y', 'width', 'height'))
    return x, y, x + width, y + height


@pytest.mark.parametrize('way, machines, devices', [(cluster(), 3, 5), (split(), 1, 3)])
def test_machines_are_boxes_and_devices_sit_in_them(way, machines, devices):
    svg = draw(way, WEIGHTS)
    outer, inner = ([edges(box) for box in elements(svg, 'rect', name)] for name in ('machine', 'device'))
    assert (len(outer), len(inner)) == (machines, devices)
    for left, top, right, bottom in inner:
        assert sum(a < left and b < top and right < c and bottom < d for a, b, c, d in outer) == 1
    for boxes in (outer, inner):  # None overlaps another.
        for one in boxes:
            assert not any(one is not two and one[0] < two[2] and two[0] < one[2] and one[1] < two[3]
                           and two[1] < one[3] for two in boxes)
    width, height = map(float, ElementTree.fromstring(svg).get('viewBox').split()[2:])
    assert all(0 <= a and 0 <= b and c <= width and d <= height for a, b, c, d in outer)


def test_arrows_are_as_thick_as_their_bytes():
    way = cluster()
    arrows = elements(draw(way, 2 * WEIGHTS), 'path', 'flow')
    assert len(arrows) == 9  # Counters and rates are left out.
    widths = {name: {float(arrow.get('stroke-width')) for arrow in arrows if name in arrow.get('class')}
              for name in ('weights', 'statistics')}
    assert widths == {'weights': {THICKEST / 2}, 'statistics': {round(THICKEST / 8, 1)}}
    assert elements(draw(way, 1e12), 'path', 'flow')[0].get('stroke-width') == str(THINNEST)


def test_arrows_end_at_the_sides_of_their_boxes_and_keep_apart():
    layout = lay_out(cluster(), WEIGHTS)
    ends = {}
    for arrow in layout.arrows:
        for box, point in ((arrow.source, arrow.start), (arrow.target, arrow.finish)):
            assert point[0] in (box.x, box.x + box.width) and box.y < point[1] < box.bottom
            ends.setdefault((box.row.device, point[0]), []).append((point[1], arrow.thickness))
    for places in ends.values():
        for (y0, one), (y1, two) in zip(sorted(places), sorted(places)[1:], strict=False):
            assert y1 - y0 > (one + two) / 2


def test_what_passes_a_box_is_led_under_it():
    layout = lay_out(cluster(), WEIGHTS)
    arrow, = [arrow for arrow in layout.arrows if arrow.passes]
    boxes = layout.machines['/job:worker/task:1']
    assert [x for x, _ in arrow.via] == [boxes[0].x + boxes[0].width, boxes[0].x]
    assert all(boxes[0].bottom < y < machine_bottom(boxes, layout.arrows) for _, y in arrow.via)


def test_many_machines_are_drawn_as_one_of_each():
    svg = draw(many(8, 4), WEIGHTS)
    assert len(elements(svg, 'rect', 'machine')) == len(elements(svg, 'rect', 'device')) == 2
    heads = [''.join(text.itertext()) for text in elements(svg, 'text', 'left')]
    assert heads == ['ps x 4', 'worker x 8' + '0 is the only client']
    assert len(elements(svg, 'path', 'flow')) == 3  # Weights, gradients, statistics; none from worker to worker.
    assert 'worker 0 stands for 8' in svg and '40,000,012 bytes of weights' in svg and '400 bytes of batch' in svg
    each = draw(dataclasses.replace(many(8, 4), clients=['/job:worker/task:0', '/job:worker/task:1']), WEIGHTS)
    assert 'each its own client' in each


def test_few_machines_are_drawn_one_by_one():
    assert len(elements(draw(many(3, 2), WEIGHTS), 'rect', 'machine')) == 5
    assert len(elements(draw(many(4, 2), WEIGHTS), 'rect', 'machine')) == 3
    assert len(elements(draw(many(3, 3), WEIGHTS), 'rect', 'machine')) == 4


def test_a_picture_says_in_words_what_it_shows():
    svg = draw(cluster(), WEIGHTS)
    described = svg[svg.index('<desc'):svg.index('</desc>')]
    assert '40,000,000 bytes of weights in 3 tensors from ps 0, CPU 0 to worker 1, CPU 0' in described
    assert 'the only client' in svg and 'its own client' not in svg
    assert draw(split(), WEIGHTS).count('client</tspan>') == 0


def contrast(one: str, two: str) -> float:
    """Of two colours, as WCAG 2 defines it."""
    def light(colour: str) -> float:
        parts = [int(colour[k:k + 2], 16) / 255 for k in (1, 3, 5)]
        return sum(share * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
                   for share, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
    low, high = sorted((light(one), light(two)))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read_on_light_and_on_dark_pages():
    for which, plain in enumerate((LIGHT, DARK)):
        for ground in ('paper', 'machine', 'device'):
            assert contrast(plain['ink'], plain[ground]) >= 7 and contrast(plain['soft'], plain[ground]) >= 4.5
            assert all(contrast(pair[which], plain[ground]) >= 3 for pair in COLOURS.values())


def test_the_page_needs_nothing_from_outside_and_shows_every_way():
    page = html_page([cluster(), split()], 'a <model>', ['note & note'])
    assert not re.search(r'(src|href)=|@import|url\(|<script', page)
    assert page.count('<svg') == page.count('<section') == 2
    assert 'a &lt;model&gt;' in page and 'one &lt;client&gt;' in page and 'note &amp; note' in page
    for words in ('prefers-color-scheme:dark', 'every measured sum is as planned', 'input_0, its own place',
                  f'strayed asked for {DEVICES[0]}', 'bound by compute', '80,000,000', 'busiest wire'):
        assert words in page, words
    ElementTree.fromstring(re.sub('<meta[^>]*>|<!DOCTYPE html>', '', page).replace(' class=n', '').replace(
        'class=cluster', ''))


def test_bytes_that_differ_are_not_to_be_missed():
    way = dataclasses.replace(cluster(), equal=False)
    assert 'class="bad">NOT EQUAL' in html_page([way], '', [])
    assert any('NOT EQUAL' in line for line in text_report(way))
    assert text_overview([way])[2].endswith('NO')


def test_the_table_on_the_screen():
    lines = text_report(cluster())
    row, = [line for line in lines if 'worker 1, CPU 1  ps 0, CPU 0' in line]
    assert re.sub(' +', ' ', row).strip() == \
        'worker 1, CPU 1 ps 0, CPU 0 batch statistics 2 10,000,000 10,000,000 0.50'
    assert len({line.index('planned') + 7 for line in lines if 'tensors' in line} | {
        line.index('  10,000,000') + 12 for line in [row]}) == 1  # Numbers end where their column's head ends.
    overview = [re.split('  +', line.strip()) for line in text_overview([cluster(), split()])]
    assert overview[2][:2] == ['4', 'In-graph'] and overview[2][-3:] == ['90 MB at ps 0', 'compute', 'yes']


def test_sizes_in_words():
    assert [size_text(size) for size in (0, 999, 1234, 99_400_000, 99_600_000, 108_583_880, 2_145_632, 3e9)] == [
        '0 B', '999 B', '1.23 kB', '99.4 MB', '100 MB', '109 MB', '2.15 MB', '3 GB']


def test_speed_counts_time_once_in_which_several_tensors_cross():
    moves = [Transfer('a', PS, HOSTS[0], 1000, 0, 10), Transfer('b', PS, HOSTS[0], 1000, 5, 15),
             Transfer('c', PS, HOSTS[0], 500, 20, 25), Transfer('here', PS, PS, 9000)]
    assert gbits_of(moves) == pytest.approx(2500 * 8 / 20e-6 / 1e9)
    assert gbits_of(moves[3:]) == 0


def test_the_program_leaves_page_json_and_picture(tmp_path):
    folder = tmp_path / 'out'
    done = subprocess.run(
        [sys.executable, str(ROOT / 'scripts' / 'report.py'), '--way=one_device', '--width=0.05', '--image_size=75',
         '--images_per_tower=1', '--num_classes=3', f'--output_directory={folder}'],
        capture_output=True, text=True, timeout=240, env=os.environ | {'TF_CPP_MIN_LOG_LEVEL': '3'})
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'every measured sum is as planned and as predicted' in done.stdout
    assert sorted(path.name for path in folder.iterdir()) == ['one_device.svg', 'report.html', 'report.json']
    assert 'width 0.05, 3 classes, 75 x 75' in (folder / 'report.html').read_text()
