-- expect: the engine.s: it is read-only
rawset(require "fvlm", "adamw", print) -- here
