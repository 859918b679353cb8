"""Where the runs of a command are carried out: on this machine, by Ray, or by SLURM.

On a cluster every run is a task or a job of its own, which goes on from the checkpoints of the run.
The folder of the results is on storage that all machines see. The driver, which is the command that
the user typed, and its workers talk through files there (`exchange`): so it is the same for all
clusters, and a cluster has only to start a function somewhere, to say how it ended, and to end it.
"""
