-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory)
local t = {}
for i = 1, 50000 do t[i] = 128512 end
while true do local s = utf8.char(table.unpack(t)) end -- here
