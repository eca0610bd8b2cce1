"""A small imitation of ILSVRC2012 in each of the layouts that people have, and what the 2016 program made of it.

24 classes of 2 training images, among them the 23 files that are no RGB JPEG, and 6 validation images. What the
records are to hold is written down from the rules that the 2016 programs publish, not computed by the code under test.
"""

import io
import pathlib
import random
import shutil
import tarfile

import numpy as np
from PIL import Image

PNG = 'n02105855_2933'
CMYK = [
    'n01739381_1309', 'n02077923_14822', 'n02447366_23489', 'n02492035_15739', 'n02747177_10752', 'n03018349_4028',
    'n03062245_4620', 'n03347037_9675', 'n03467068_12171', 'n03529860_11437', 'n03544143_17228', 'n03633091_5218',
    'n03710637_5125', 'n03961711_5286', 'n04033995_2932', 'n04258138_17003', 'n04264628_27969', 'n04336792_7448',
    'n04371774_5854', 'n04596742_4225', 'n07583066_647', 'n13037406_4650']
SYNSETS = sorted({'n01440764', *(name.partition('_')[0] for name in (PNG, *CMYK))})
WORDS = {synset: f'thing {number}, Res {number}' for number, synset in enumerate(SYNSETS)} | {
    SYNSETS[3]: 'crane', SYNSETS[8]: 'crane'}
TRUTH = {f'ILSVRC2012_val_{number + 1:08d}': SYNSETS[label] for number, label in enumerate((5, 0, 23, 5, 11, 2))}
IDS = dict(zip(random.Random(3).sample(range(1, 25), 24), SYNSETS, strict=True))  # Not the sorted order.
GREY, TURNED = 'n01440764_1', 'n02077923_2'
# Name: (labels and xmin, ymin, xmax, ymax as annotated in a picture seen at 200 x 100; the boxes that are kept).
BOXES = {
    'n01440764_1': ([('n01440764', 20, 10, 100, 60), ('n01440764', 0, 0, 200, 100)],
                    [(.1, .1, .5, .6), (0., 0., 1., 1.)]),
    'n01440764_2': ([('n01440764', -40, 50, 250, 133), ('n01440764', 1, 1, 3, 2)],  # Beyond the picture; 4 decimals.
                    [(0., .5, 1., 1.), (.005, .01, .015, .02)]),
    'n01739381_2': ([('n01739381', 100, 60, 20, 10)], [(.1, .1, .5, .6)]),  # Reversed.
    'n01739381_1309': ([('n01739381', 20, 10, 20, 60), ('n01739381', 300, 10, 400, 20)], []),  # No area; outside.
    'n02105855_2': ([('n01440764', 20, 10, 100, 60), ('Scottish_deerhound', 20, 10, 100, 60)], [(.1, .1, .5, .6)]),
    'n02077923_2': ([('n02077923', '20.0', '10.9', '100.2', '60')], [(.1, .1, .5, .6)]),
    'ILSVRC2012_val_00000001': ([(SYNSETS[5], 20, 10, 100, 60)], [(.1, .1, .5, .6)])}
LEFT_OUT = 3


def _bytes(name: str) -> bytes:
    """An image file, different for each name; of what kind its name says."""
    chance = np.random.RandomState(sum(map(ord, name)) * 7 % 2**31)
    pixels = np.kron(chance.randint(0, 255, (3, 4, 4 if name in CMYK else 3)), np.ones((4, 4, 1))).astype(np.uint8)
    kept = io.BytesIO()
    if name == PNG:
        Image.fromarray(pixels).save(kept, 'PNG')
    elif name in CMYK:
        Image.fromarray(pixels, 'CMYK').save(kept, 'JPEG')
    elif name == GREY:
        Image.fromarray(pixels[:, :, 0]).save(kept, 'JPEG')
    else:
        exif = Image.Exif()
        exif[0x0112] = 6 if name == TURNED else 1
        Image.fromarray(pixels).save(kept, 'JPEG', exif=exif)
    return kept.getvalue()


TRAIN = {name: _bytes(name) for synset in SYNSETS for name in (f'{synset}_2', next(
    (odd for odd in (PNG, *CMYK) if odd.startswith(synset)), f'{synset}_1'))}
VALIDATION = {name: _bytes(name) for name in TRUTH}


def encoded_2016(name: str) -> bytes:
    """image/encoded as 2016 had it: the file, or what TensorFlow makes of it for the 23."""
    import tensorflow as tf
    data = (TRAIN | VALIDATION)[name]
    if name != PNG and name not in CMYK:
        return data
    image = tf.io.decode_png(data, channels=3) if name == PNG else tf.io.decode_jpeg(data, channels=0)
    return tf.io.encode_jpeg(image, format='rgb', quality=100).numpy()


def fields_2016(name: str) -> dict[str, list]:
    """Every field but image/encoded."""
    synset = TRUTH.get(name) or name.partition('_')[0]
    boxes = BOXES.get(name, ((), ()))[1]
    label = SYNSETS.index(synset) + 1
    return {'image/height': [12], 'image/width': [16], 'image/colorspace': [b'RGB'], 'image/channels': [3],
            'image/format': [b'JPEG'], 'image/filename': [f'{name}.JPEG'.encode()],
            'image/class/label': [label], 'image/class/synset': [synset.encode()],
            'image/class/text': [WORDS[synset].encode()], 'image/object/bbox/label': [label] * len(boxes),
            **{f'image/object/bbox/{edge}': np.float32([box[number] for box in boxes]).tolist()
               for number, edge in enumerate(('xmin', 'ymin', 'xmax', 'ymax'))}}


def xml(name: str) -> str:
    objects = ''.join(f'<object><name>{label}</name><bndbox><xmin>{xmin}</xmin><ymin>{ymin}</ymin><xmax>{xmax}</xmax>'
                      f'<ymax>{ymax}</ymax></bndbox></object>' for label, xmin, ymin, xmax, ymax in BOXES[name][0])
    return (f'<annotation><folder>x</folder><filename>%s</filename><size><width>200</width><height>100</height>'
            f'<depth>3</depth></size>{objects}</annotation>')


def _put(path: pathlib.Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _tar(path: pathlib.Path, files: dict[str, bytes], mode: str = 'w') -> None:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def inner_tars() -> dict[str, bytes]:
    made = {}
    for synset in reversed(SYNSETS):
        kept = io.BytesIO()
        with tarfile.open(fileobj=kept, mode='w') as archive:
            for name, content in reversed(TRAIN.items()):
                if name.startswith(synset):
                    entry = tarfile.TarInfo(f'{name}.JPEG')
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
        made[f'{synset}.tar'] = kept.getvalue()
    return made


def devkit() -> dict[str, bytes]:
    """The files of the devkit; needs scipy."""
    from scipy.io import savemat
    kinds = [('ILSVRC2012_ID', 'O'), ('WNID', 'O'), ('words', 'O'), ('num_children', 'O')]
    rows = [(number, synset, WORDS[synset], 0) for number, synset in IDS.items()]
    rows.append((25, 'n00001740', 'entity', 24))  # A group of classes.
    kept = io.BytesIO()
    savemat(kept, {'synsets': np.array(rows, dtype=kinds).reshape(-1, 1)})
    number_of = {synset: number for number, synset in IDS.items()}
    return {'data/meta.mat': kept.getvalue(),
            'data/ILSVRC2012_validation_ground_truth.txt': ''.join(
                f'{number_of[synset]}\n' for synset in TRUTH.values()).encode()}


def tars(folder: pathlib.Path) -> pathlib.Path:
    """As image-net.org gives it."""
    folder.mkdir(parents=True)
    _tar(folder / 'ILSVRC2012_img_train.tar', inner_tars())
    _tar(folder / 'ILSVRC2012_img_val.tar', {f'{name}.JPEG': content for name, content in VALIDATION.items()})
    _tar(folder / 'ILSVRC2012_devkit_t12.tar.gz', {
        f'ILSVRC2012_devkit_t12/{name}': content for name, content in devkit().items()}, 'w:gz')
    _tar(folder / 'ILSVRC2012_bbox_train_v2.tar.gz', {
        f'{name.partition("_")[0]}/{name}.xml': xml(name).encode() for name in BOXES if name[0] == 'n'}, 'w:gz')
    _tar(folder / 'ILSVRC2012_bbox_val_v3.tgz', {
        f'val/{name}.xml': xml(name).encode() for name in BOXES if name[0] == 'I'}, 'w:gz')
    return folder


def tree(folder: pathlib.Path) -> pathlib.Path:
    """The same, unpacked."""
    for name, content in TRAIN.items():
        _put(folder / 'train' / name.partition('_')[0] / f'{name}.JPEG', content)
    for name, content in VALIDATION.items():
        _put(folder / 'val' / f'{name}.JPEG', content)
    for name, content in devkit().items():
        _put(folder / 'ILSVRC2012_devkit_t12' / name, content)
    for name in BOXES:
        where = name.partition('_')[0] if name[0] == 'n' else 'val'
        _put(folder / 'bounding_boxes' / where / f'{name}.xml', xml(name))
    return folder


def kaggle(folder: pathlib.Path) -> pathlib.Path:
    """Kaggle's tree."""
    for name, content in TRAIN.items():
        _put(folder / 'ILSVRC/Data/CLS-LOC/train' / name.partition('_')[0] / f'{name}.JPEG', content)
    for name, content in VALIDATION.items():
        _put(folder / 'ILSVRC/Data/CLS-LOC/val' / f'{name}.JPEG', content)
    _put(folder / 'ILSVRC/Data/CLS-LOC/test/ILSVRC2012_test_00000001.JPEG', b'')
    for name in BOXES:
        _put(folder / 'ILSVRC/Annotations/CLS-LOC' / (
            f'train/{name.partition("_")[0]}' if name[0] == 'n' else 'val') / f'{name}.xml', xml(name))
    _put(folder / 'LOC_synset_mapping.txt', ''.join(f'{synset} {words}\n' for synset, words in WORDS.items()))
    rows = [f'{name},{synset} 1 2 3 4 {synset} 5 6 7 8 \n' for name, synset in TRUTH.items()]
    _put(folder / 'LOC_val_solution.csv', 'ImageId,PredictionString\n' + ''.join(rows[::-1]))
    return folder


def of_2016(folder: pathlib.Path) -> pathlib.Path:
    """As the 2016 program's own preparation left it."""
    for name, content in TRAIN.items():
        _put(folder / 'train' / name.partition('_')[0] / f'{name}.JPEG', content)
    for name, content in VALIDATION.items():
        _put(folder / 'validation' / TRUTH[name] / f'{name}.JPEG', content)
    _put(folder / 'synsets.txt', ''.join(f'{synset}\n' for synset in SYNSETS))
    _put(folder / 'metadata.txt', ''.join(f'{synset}\t{words}\n' for synset, words in WORDS.items()))
    _put(folder / 'boxes.csv', ''.join(
        f'{name}.JPEG,' + ','.join(f'{edge:.4f}' for edge in box) + '\n' for name in BOXES for box in BOXES[name][1]))
    return folder


def copy(folder: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(folder, to))
