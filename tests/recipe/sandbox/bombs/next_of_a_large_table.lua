-- expect: more than 5000000 instructions
local t = {}
for i = 1, 50000 do t[i] = i end
local k
while true do k = next(t, k) end -- here
