"""What a command tells the shell: every command ends with one of these."""

DONE = 0
FAILED = 1
WRONG_USE = 2
SET_ASIDE = 3  # done, but some items were set aside and are listed
INTERRUPTED = 75  # stopped from outside; the same command continues (EX_TEMPFAIL: job systems requeue it)
