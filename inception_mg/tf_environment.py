"""What TensorFlow reads from the environment while it is imported. Imports no TensorFlow itself."""

# Whoever sets one of them decides.
DEFAULTS = {
    'TF_CPP_MIN_LOG_LEVEL': '3',
    # TensorFlow imports Keras, and Keras matplotlib, to register its optimizers: 0.3 to 1.2 s in every process of
    # programs that use neither. With this it looks for the older Keras instead, which is a package of its own.
    'TF_USE_LEGACY_KERAS': '1',
}
