"""The referee: answers Go's requests, and is where a verdict is made.

main serves requests, evaluation makes a verdict of a candidate, faults says whose fault ends one,
warm_pool keeps processes for the next one, doctor says what works on this machine.

Side: referee.
Imported by: nobody.
"""
