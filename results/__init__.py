"""What the tuner keeps: trials, launch plans and the frozen set. Needs no emitter, no simulator, no GPU."""
