"""Small networks of TensorFlow: functions, layers and loops, as `exporters.py tensorflow` writes them.

Each is a function and the shapes of what it takes (f32; None: known only when it runs). They are about what TensorFlow
writes otherwise than PyTorch: channels last, padding by `SAME`, slices with masks, loops that conditions end.
"""
import numpy as np
import tensorflow as tf

LAYERS = tf.keras.layers
IMAGE, IMAGES, SEQUENCE = (1, None, None, 3), (None, 12, 10, 4), (None, None, 6)


def drawn(*shape):
    return tf.constant(np.random.RandomState(0).randn(*shape).astype(np.float32))


def integers(x):
    return tf.cast(tf.abs(x), tf.int32)


class Cell(LAYERS.Layer):
    """A recurrent cell that no operator of ONNX stands for."""

    def __init__(self, units):
        super().__init__()
        self.units = self.state_size = units
        self.of_input = LAYERS.Dense(units, activation="tanh")
        self.of_state = LAYERS.Dense(units, use_bias=False)

    def call(self, x, states):
        state = self.of_input(x) + self.of_state(states[0]) * 0.5
        return state, [state]


def functions():
    kernel, wide, matrix = drawn(3, 3, 3, 8), drawn(3, 3, 8, 3), drawn(4, 4)
    boxes = lambda b, s: tf.gather(b, tf.image.non_max_suppression(b, s, 10, 0.5, 0.1))
    doubled = lambda x: tf.stack([tf.shape(x)[0], tf.shape(x)[1] * 2, tf.shape(x)[2] * 2, 8])
    grid = lambda x: tf.stack(tf.meshgrid(tf.range(tf.shape(x)[1]), tf.range(tf.shape(x)[2])), -1)
    spectrum = lambda x: tf.abs(tf.signal.stft(x, 64, 32, 64))
    return {
        "resize_each": (lambda x: tf.map_fn(lambda i: tf.image.resize(i, [24, 24]), x), (None, 32, 40, 3)),
        "resize_each_of_any_size": (lambda x: tf.map_fn(lambda i: tf.image.resize(i, [24, 24]), x), IMAGE),
        "resize": (lambda x: tf.image.resize(x, [20, 30]), IMAGE),
        "resize_nearest": (lambda x: tf.image.resize(x, [20, 30], method="nearest"), (1, 16, 16, 3)),
        "suppression": (boxes, (50, 4), (50,)),
        "suppression_of_any_number": (boxes, (None, 4), (None,)),
        "crop_and_resize": (lambda x, b: tf.image.crop_and_resize(x, b, tf.zeros([5], tf.int32), [7, 7]), (1, 20, 20, 3), (5, 4)),
        "where": (lambda x: tf.gather_nd(x, tf.where(x > 0)), (6, 5)),
        "boolean_mask": (lambda x: tf.boolean_mask(x, x[:, 0] > 0), (None, 4)),
        "top_k": (lambda x: tf.math.top_k(x, 3), (None, 10)),
        "scatter": (lambda x: tf.scatter_nd([[1], [3]], x, [6, 4]), (2, 4)),
        "scatter_into": (lambda x: tf.tensor_scatter_nd_update(x, [[0], [2]], tf.ones([2, 4])), (5, 4)),
        "unique": (lambda x: tf.unique(tf.cast(x, tf.int32))[0], (20,)),
        "one_hot": (lambda x: tf.one_hot(tf.argmax(x, -1), 10), (None, 10)),
        "segments": (lambda x: tf.math.unsorted_segment_sum(x, tf.constant([0, 1, 0, 2, 1]), 3), (5, 4)),
        "space_to_depth": (lambda x: tf.nn.space_to_depth(x, 2), (None, 8, 8, 3)),
        "depth_to_space": (lambda x: tf.nn.depth_to_space(x, 2), (None, 8, 8, 12)),
        "dilated": (lambda x: tf.nn.conv2d(x, kernel, 1, "SAME", dilations=2), (None, 16, 16, 3)),
        "atrous": (lambda x: tf.nn.atrous_conv2d(x, kernel, 3, "VALID"), IMAGE),
        "strided_same": (lambda x: tf.nn.conv2d(x, kernel, 2, "SAME"), IMAGE),
        "transposed": (lambda x: tf.nn.conv2d_transpose(x, wide, [2, 32, 32, 8], 2, "SAME"), (2, 16, 16, 3)),
        "transposed_of_any_size": (lambda x: tf.nn.conv2d_transpose(x, wide, doubled(x), 2, "SAME"), (None, None, None, 3)),
        "depthwise": (lambda x: tf.nn.depthwise_conv2d(x, drawn(3, 3, 3, 2), [1, 2, 2, 1], "SAME"), IMAGE),
        "max_pool": (lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), IMAGE),
        "average_pool": (lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME"), IMAGE),
        "response_normalisation": (lambda x: tf.nn.lrn(x, 3), (1, 8, 8, 16)),
        "reverse_sequence": (lambda x: tf.reverse_sequence(x, tf.constant([2, 5]), seq_axis=1, batch_axis=0), (2, 5, 4)),
        "cumulative_sum": (lambda x: tf.cumsum(x, axis=1, exclusive=True, reverse=True), (None, 7)),
        "einsum": (lambda x: tf.einsum("bhqd,bhkd->bhqk", x, x), (None, 2, 5, 4)),
        "last": (lambda x: x[:, -1], (None, None, 4)),
        "first_half": (lambda x: x[:, :tf.shape(x)[1] // 2], (None, None, 4)),
        "reflected": (lambda x: tf.pad(x, [[0, 0], [2, 2], [1, 3], [0, 0]], "REFLECT"), IMAGE),
        "tile": (lambda x: tf.tile(x, [1, 2, tf.shape(x)[0]]), (None, 3, 4)),
        "positions": (lambda x: x + tf.cast(tf.range(tf.shape(x)[1]), tf.float32)[None, :, None], (None, None, 4)),
        "sequence_mask": (lambda x: tf.sequence_mask(tf.cast(tf.reduce_sum(x, 1), tf.int32), 7), (None, 4)),
        "band": (lambda x: tf.linalg.band_part(x, 0, -1), (None, 6, 6)),
        "diagonal": (lambda x: tf.linalg.diag_part(x), (3, 6, 6)),
        "moments": (lambda x: tf.nn.batch_normalization(x, *tf.nn.moments(x, [0, 1, 2]), None, None, 1e-5), (None, 8, 8, 3)),
        "split": (lambda x: tf.split(x, 3, axis=-1), (None, None, 12)),
        "unstack": (lambda x: tf.unstack(x, axis=1), (None, 3, 4)),
        "gather_in_batch": (lambda x: tf.gather(x, tf.argsort(x[:, :, 0]), batch_dims=1), (2, 5, 3)),
        "sort": (lambda x: tf.sort(x, axis=-1, direction="DESCENDING"), (None, 7)),
        "condition": (lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(x) * 2, lambda: x - 1), (None, 4)),
        "transform": (lambda x: tf.abs(tf.signal.rfft(x, [32])), (4, 32)),
        "spectrum": (spectrum, (1, 512)),
        "mel": (lambda x: tf.matmul(spectrum(x), tf.signal.linear_to_mel_weight_matrix(10, 33, 16000)), (1, 512)),
        "normalised": (lambda x: tf.nn.l2_normalize(x, -1), (None, 16)),
        "labels": (lambda x: tf.cast(tf.argmax(x, -1, output_type=tf.int32), tf.float32), (None, None, 20)),
        "roll": (lambda x: tf.roll(x, [1, 2], [1, 2]), (None, 8, 8, 3)),
        "grid": (lambda x: grid(x) + tf.cast(tf.reduce_sum(x) * 0, tf.int32), IMAGE),
        "embedded": (lambda x: tf.reduce_mean(tf.gather(drawn(50, 8), integers(x)), 1), (None, 6)),
        "rounded": (lambda x: tf.quantization.fake_quant_with_min_max_args(x, -3, 3), (4, 4)),
        "modulo": (lambda x: tf.math.floormod(x, 0.7), (4, 4)),
        "difference": (lambda x: tf.math.squared_difference(x, x[::-1]), (4, 4)),
        "counts": (lambda x: tf.math.bincount(integers(x), minlength=5, maxlength=5), (20,)),
        "map": (lambda x: tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(matrix, row)), x), (1000, 4)),
        "map_of_any_number": (lambda x: tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(matrix, row)), x), (None, 4)),
        "root": (lambda x: root(tf.abs(x) + 0.5), (6,)),
        "root_of_any_number": (lambda x: root(tf.abs(x) + 0.5), (None,)),
        "root_in_few_steps": (lambda x: root(tf.abs(x) + 0.5, maximum_iterations=50), (6,)),
        "greedy": (greedy, (8,)),
    }


def root(x, **limits):
    """By Newton's method, until it is near."""
    is_far = lambda y, _: tf.reduce_max(tf.abs(y * y - x)) > 1e-3
    return tf.while_loop(is_far, lambda y, steps: (0.5 * (y + x / y), steps + 1), [tf.ones_like(x), tf.constant(0)], **limits)


def greedy(state):
    """The likeliest token behind each one, until one of them ends the text."""
    table, weights, end = drawn(16, 8), drawn(8, 16), 3
    tokens = tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=())

    def step(at, state, token, tokens):
        state = tf.tanh(state * 0.7 + tf.gather(table, token))
        token = tf.argmax(tf.linalg.matvec(weights, state, transpose_a=True), output_type=tf.int32)
        return at + 1, state, token, tokens.write(at, token)

    goes_on = lambda at, state, token, tokens: tf.logical_and(at < 20, token != end)
    _, state, _, tokens = tf.while_loop(goes_on, step, [tf.constant(0), state, tf.constant(0), tokens])
    return tokens.stack(), state


def layers():
    """Layers of Keras, and what they take."""
    recurrent = LAYERS.RNN
    return {
        "conv1d": (LAYERS.Conv1D(8, 3, padding="causal"), SEQUENCE),
        "conv1d_dilated": (LAYERS.Conv1D(8, 3, dilation_rate=2, padding="same"), SEQUENCE),
        "conv3d": (LAYERS.Conv3D(4, 3), (None, 6, 6, 6, 2)),
        "conv2d_transpose": (LAYERS.Conv2DTranspose(6, 3, strides=2, padding="same"), IMAGES),
        "conv1d_transpose": (LAYERS.Conv1DTranspose(6, 4, strides=2), (None, 9, 6)),
        "separable2d": (LAYERS.SeparableConv2D(8, 3, padding="same"), IMAGES),
        "separable1d": (LAYERS.SeparableConv1D(8, 3), (None, 12, 6)),
        "depthwise2d": (LAYERS.DepthwiseConv2D(3, depth_multiplier=2), IMAGES),
        "local1d": (LAYERS.LocallyConnected1D(4, 3), (None, 9, 6)),
        "local2d": (LAYERS.LocallyConnected2D(4, 3), (None, 8, 7, 3)),
        "batch_normalization": (LAYERS.BatchNormalization(), IMAGES),
        "layer_normalization": (LAYERS.LayerNormalization(), SEQUENCE),
        "group_normalization": (LAYERS.GroupNormalization(2), IMAGES),
        "unit_normalization": (LAYERS.UnitNormalization(), SEQUENCE),
        "normalization": (LAYERS.Normalization(mean=1.0, variance=2.0), SEQUENCE),
        "global_average": (LAYERS.GlobalAveragePooling2D(), (None, None, None, 4)),
        "global_max": (LAYERS.GlobalMaxPooling1D(), SEQUENCE),
        "average3d": (LAYERS.AveragePooling3D(2), (None, 6, 6, 6, 2)),
        "upsampling": (LAYERS.UpSampling2D(2, interpolation="bilinear"), IMAGES),
        "upsampling_nearest": (LAYERS.UpSampling2D((3, 2)), (None, None, None, 4)),
        "zero_padding": (LAYERS.ZeroPadding2D(((1, 2), (0, 3))), IMAGES),
        "cropping": (LAYERS.Cropping2D(((1, 2), (0, 3))), IMAGES),
        "resizing": (LAYERS.Resizing(7, 9), (None, None, None, 3)),
        "rescaling": (LAYERS.Rescaling(1 / 255), IMAGES),
        "center_crop": (LAYERS.CenterCrop(5, 6), IMAGES),
        "permute": (LAYERS.Permute((3, 1, 2)), IMAGES),
        "repeat": (LAYERS.RepeatVector(4), (None, 6)),
        "dense": (tf.keras.Sequential([LAYERS.Flatten(), LAYERS.Dense(3)]), IMAGES),
        "einsum_dense": (LAYERS.EinsumDense("abc,cde->abde", output_shape=(None, 2, 8)), SEQUENCE),
        "prelu": (LAYERS.PReLU(shared_axes=[1, 2]), IMAGES),
        "leaky_relu": (LAYERS.LeakyReLU(), IMAGES),
        "softmax": (LAYERS.Softmax(1), IMAGES),
        "noise": (LAYERS.GaussianNoise(0.1), IMAGES),
        "dot": (LAYERS.Lambda(lambda x: LAYERS.Dot(axes=2, normalize=True)([x, x])), SEQUENCE),
        "embedding": (tf.keras.Sequential([LAYERS.Lambda(lambda x: integers(x * 3)), LAYERS.Embedding(20, 6)]), (None, None)),
        "time_distributed": (LAYERS.TimeDistributed(LAYERS.Conv2D(3, 3)), (None, 5, 8, 8, 2)),
        "own_cell": (recurrent(Cell(8), return_sequences=True), (2, 40, 4)),
        "own_cell_long": (recurrent(Cell(8), return_sequences=True), (2, 1500, 4)),
        "own_cell_of_any_length": (recurrent(Cell(8), return_sequences=True), (None, None, 4)),
        "lstm": (LAYERS.LSTM(8, return_sequences=True), (None, None, 4)),
        "lstm_backwards": (LAYERS.LSTM(5, go_backwards=True, return_sequences=True), SEQUENCE),
        "lstm_masked": (tf.keras.Sequential([LAYERS.Masking(), LAYERS.LSTM(5)]), SEQUENCE),
        "lstm_both_ways": (LAYERS.Bidirectional(LAYERS.LSTM(8, return_sequences=True)), (None, 12, 4)),
        "gru": (LAYERS.GRU(8, return_sequences=True), (None, None, 4)),
        "gru_reset_before": (LAYERS.GRU(5, reset_after=False), SEQUENCE),
        "gru_both_ways": (LAYERS.Bidirectional(LAYERS.GRU(5), merge_mode="sum"), SEQUENCE),
        "simple_rnn": (LAYERS.SimpleRNN(8), (None, None, 4)),
        "cells": (recurrent([LAYERS.SimpleRNNCell(4), LAYERS.SimpleRNNCell(3)], return_sequences=True), SEQUENCE),
        "mixed_cells": (recurrent([LAYERS.LSTMCell(6), LAYERS.GRUCell(5)]), (None, 9, 4)),
        "conv_lstm1d": (LAYERS.ConvLSTM1D(3, 3), (None, 5, 9, 2)),
        "conv_lstm2d": (LAYERS.ConvLSTM2D(4, 3, padding="same"), (1, 5, 8, 8, 2)),
        "conv_lstm2d_of_any_length": (LAYERS.ConvLSTM2D(4, 3, padding="same", return_sequences=True), (None, None, 8, 8, 2)),
        "conv_lstm3d": (LAYERS.ConvLSTM3D(2, 3), (1, 3, 5, 5, 5, 2)),
    }


def networks():
    """Name, function and the shapes of its inputs."""
    tf.random.set_seed(0)
    yield from ((name, function, shapes) for name, (function, *shapes) in functions().items())
    attention = LAYERS.MultiHeadAttention(2, 8)
    for name, layer, shape, call in [(name, layer, shape, layer) for name, (layer, shape) in layers().items()] + [
            ("attention", attention, (None, 7, 16), lambda x: attention(x, x))]:
        # weights are made outside of what is exported
        call(tf.zeros([extent or 2 for extent in shape]))
        yield f"layer_{name}", lambda x, call=call: call(x), [shape]
