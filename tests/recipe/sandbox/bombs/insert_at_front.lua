-- expect: more than 5000000 instructions
local t = {}
while true do table.insert(t, 1, 1) end -- here
