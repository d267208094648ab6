assert(load == nil and rawget(_G, "load") == nil)
return "contained"
