for _, value in ipairs { {}, print, function() end, coroutine.create(print), string, require "fvlm" } do
  assert(not tostring(value):find("%d"), tostring(value))
  assert(not ("%s"):format(value):find("%d"))
end
return "contained"
