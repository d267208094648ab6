-- expect: (more than 5000000 instructions|longer than|more than 16.0 MiB of memory)
-- seconds: 1
local t = {}
for i = 1, 1e6 do t[i * 2 ^ 40] = true end -- here
