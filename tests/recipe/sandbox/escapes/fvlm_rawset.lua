-- expect: belongs to the engine and is read-only
rawset(require "fvlm", "adamw", print) -- here
