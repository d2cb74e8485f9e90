"""Extensions of transformers that `rifflemix.register_hf` registers."""
