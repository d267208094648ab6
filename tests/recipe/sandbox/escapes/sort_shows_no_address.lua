-- tables cannot be compared, and as text they are all alike
local t = {}
for i = 1, 10 do t[i] = {} end
assert(not pcall(table.sort, t))
table.sort(t, function(a, b) return tostring(a) < tostring(b) end)
return "contained"
