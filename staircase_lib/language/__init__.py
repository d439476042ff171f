"""Language models: Transformers that predict the next token, and the paths of their gradients."""
