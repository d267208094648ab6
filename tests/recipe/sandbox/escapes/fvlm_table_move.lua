-- expect: read-only
table.move({ print }, 1, 1, 1, require "fvlm") -- here
