"""What a training leaves beside its checkpoints: model.json, its state, STOP."""
