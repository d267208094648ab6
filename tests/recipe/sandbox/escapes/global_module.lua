assert(module == nil and rawget(_G, "module") == nil)
return "contained"
