-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory)
local function nest() pcall(coroutine.wrap(nest)) pcall(coroutine.wrap(nest)) end
while true do nest() end
