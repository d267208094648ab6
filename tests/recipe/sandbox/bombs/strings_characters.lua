-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory)
local t = {}
for i = 1, 100000 do t[i] = 65 end
while true do local s = string.char(table.unpack(t)) end -- here
