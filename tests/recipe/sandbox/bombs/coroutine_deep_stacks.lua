-- expect: more than 16.0 MiB of memory
local kept = {}
local function deep(n) if n == 0 then coroutine.yield() else return 1 + deep(n - 1) end end
while true do
  local co = coroutine.create(deep)
  coroutine.resume(co, 10000)
  kept[#kept + 1] = co
end
