"""`smol-dream`: conversion of a Llama, its adapter, the texts it is trained on, and the training."""
