for _, name in ipairs { "io", "os", "debug", "package", "_G", "string", "ffi", "jit" } do
  assert(not pcall(require, name), name)
end
return "contained"
