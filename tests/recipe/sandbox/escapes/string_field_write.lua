-- expect: attempt to index a string value
local s = "x"
s.rep = error -- here
