local co
co = coroutine.create(function() return coroutine.resume(co) end)
local _, ok = coroutine.resume(co)
assert(ok == false)
return "contained"
