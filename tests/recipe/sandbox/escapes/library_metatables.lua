for _, library in ipairs { string, table, math, utf8, coroutine } do
  assert(getmetatable(library) == false)
  assert(not pcall(setmetatable, library, nil))
end
return "contained"
