assert(loadfile == nil and rawget(_G, "loadfile") == nil)
return "contained"
