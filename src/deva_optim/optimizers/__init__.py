"""The public classes: update rule, signature, example and paper of each optimizer."""
