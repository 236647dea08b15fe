"""The referee: answers Go's requests, and is where a verdict is made.

main serves requests; evaluation is the page that makes a verdict of a candidate, step by step:
builds, calibrating, trial (what it is tried with), verifying, exported_file, measuring, profiles,
figures. context has what every step is given, processes start, memory says how to live with little
of it, opponents are what a candidate is held against, a subject is a candidate that is right.
faults says whose fault ends an evaluation, warm_pool has processes for the next one, doctor says
what works on this machine.

Side: referee.
Imported by: nobody.
"""
