for name, value in pairs(_G) do
  assert(type(name) == "string", "a key that is not a name")
  assert(type(value) ~= "userdata" and type(value) ~= "thread", name)
end
assert(_G[1] == nil and _G[2] == nil and _G._LOADED == nil and _G._PRELOAD == nil)
return "contained"
