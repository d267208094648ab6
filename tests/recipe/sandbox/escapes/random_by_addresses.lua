-- nothing differs from run to run: not the order of a walk, not what values look like
local t, u = {}, {}
for i = 1, 100 do t["k" .. i] = i end
for i = 100, 1, -1 do u["k" .. i] = i end
local a, b = {}, {}
for k in pairs(t) do a[#a + 1] = k end
for k in pairs(u) do b[#b + 1] = k end
assert(table.concat(a) == table.concat(b))
return "contained"
