-- expect: (C stack overflow|more than 5000000 instructions|more than 16.0 MiB of memory)
local function nest() return coroutine.wrap(nest)() end
nest()
