"""Says what of an installation works, what does not, and the command that mends it.

    python -m lape_mm.doctor [CONFIG]

Everything is imported inside a check, because it is what may be broken; what rests on something
broken is not tried, so that a cause is named once. The exit status is 1 where something is broken.
"""
