-- expect: (more than 5000000 instructions|longer than)
-- seconds: 1
local a, b = ("x"):rep(3000000) .. "a", ("x"):rep(3000000) .. "b"
local t = { a, b }
while true do table.sort({ a, b, a, b }) end -- here
