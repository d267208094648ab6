for _, f in ipairs { print, pcall, error, require, setmetatable, coroutine.yield, string.rep, table.sort, coroutine.wrap } do
  coroutine.resume(coroutine.create(f))
  coroutine.resume(coroutine.create(f), {}, {})
  coroutine.resume(coroutine.create(f), "x", 3)
end
return "contained"
