-- expect: (C stack overflow|more than 5000000 instructions)
local function sort() table.sort({ 2, 1, 3 }, function(a, b) sort() return a < b end) end
sort()
