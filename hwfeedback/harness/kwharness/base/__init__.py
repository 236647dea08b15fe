"""What every process of the harness uses: messages, tensors in shared memory, statistics.

protocol frames JSON and descriptors. Messages are dataclasses (records): requests, answers and
verdicts between Go and the referee, with what Go keeps of a task (learned, calibration);
operations, for_reference, for_candidate and carried between the referee and its workers; configs is
what a worker is started with. built is what a candidate has built, graph what a reference computes,
trees and tensors carry what a forward takes and gives, stats makes intervals of times, constants
has what Go goes by as well. No module here knows anything of the rest.

Side: both.
Imported by: attribution, build, clients, export, machine, model, numerics, process, profile,
referee, standalone, task, timing, verify, workers.
"""
