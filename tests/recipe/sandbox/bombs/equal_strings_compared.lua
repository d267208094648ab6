-- expect: (more than 5000000 instructions|longer than)
-- seconds: 1
local a, b = ("x"):rep(3000000) .. "a", ("x"):rep(3000000) .. "b"
while true do local c = a == b, a < b end -- here
