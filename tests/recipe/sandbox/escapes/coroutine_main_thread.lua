local main, is_main = coroutine.running()
assert(is_main and coroutine.status(main) == "running")
assert(not coroutine.resume(main) and not pcall(coroutine.yield))
assert(not tostring(main):find("%d"))
return "contained"
