"""Loss -> checkpoint: the training loop, and what a run needs to be stopped, resumed and trusted."""
