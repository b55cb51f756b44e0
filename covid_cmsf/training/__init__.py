"""Room 6: loss -> checkpoint. One readable loop, and what a run needs to be stopped, continued and trusted."""
