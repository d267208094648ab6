-- expect: no fixed order
local t = {}
for i = 1, 20 do t[{}] = i end
for k, v in pairs(t) do print(v) end -- here
