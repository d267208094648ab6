-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory)
table.sort(setmetatable({}, { __len = function() return 2 ^ 30 // 1 | 0 end })) -- here
