-- expect: read-only
table.insert(require "fvlm", 1, print) -- here
