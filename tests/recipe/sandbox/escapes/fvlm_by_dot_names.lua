for _, name in ipairs { "__index", "__newindex", "__metatable", "__gc", "_G", "package", "loaded" } do
  assert(not pcall(function() return (require "fvlm")[name] end))
end
return "contained"
