"""What TensorBoard shows beside scalars."""

import tensorflow as tf

from inception_mg.training import summaries

v1 = tf.compat.v1


def test_the_settings_are_a_table_of_text(tmp_path):
    with tf.Graph().as_default():  # A FileWriter refuses to be made outside of one.
        writer = v1.summary.FileWriter(str(tmp_path))
    summaries.write_settings(writer, 3, {'--width': 0.5, '--batch_size': 8})
    writer.close()
    (step_v, value), = [(event.step, value) for path in tmp_path.glob('events*')
                        for event in v1.train.summary_iterator(str(path)) for value in event.summary.value]
    assert step_v == 3 and value.metadata.plugin_data.plugin_name == 'text'
    assert tf.make_ndarray(value.tensor).item().decode().splitlines() == [
        '| setting | value |', '|---|---|', '| --batch_size | 8 |', '| --width | 0.5 |']
