-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory)
local function f() return 1 + f() end
while true do pcall(f) end
