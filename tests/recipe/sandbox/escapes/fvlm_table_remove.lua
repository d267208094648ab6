-- expect: fvlm has no .0.
table.remove(require "fvlm", 0) -- here
