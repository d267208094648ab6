-- comparisons that lie, and change the table meanwhile
local t = {}
for i = 1, 200 do t[i] = i end
table.sort(t, function(a, b) t[#t] = nil t[1] = 0 return true end)
local u = { 3, 1, 2 }
pcall(table.sort, u, function() for i = 1, 100 do u[#u + 1] = i end error("x") end)
assert(not pcall(table.sort, { 3, nil, 1, "x", {} }))
return "contained"
